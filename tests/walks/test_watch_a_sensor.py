"""A sensor is turned off and on again, and its ticks say how its view stands."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.support.patience import wait_until
from tests.support.running.deployment import Deployment
from tests.walks.clicks import open_sensor, switch_sensor

STATE = """
query { sensorOrError(sensorSelector: {
  repositoryName: "__repository__", repositoryLocationName: "millrace", sensorName: "poll_orders"}) {
  ... on Sensor { sensorState { status } } } }
"""


def test_a_sensor_is_turned_off_and_on_and_its_ticks_are_read(
    page: Page, platform: Deployment, picture: Callable[[str], None]
) -> None:
    def status() -> str:
        return str(platform.ask(STATE)["sensorState"]["status"])

    open_sensor(page, "poll_orders")
    expect(page.get_by_text("Says how orders stands")).to_be_visible()
    switch_sensor(page, on=False)
    wait_until(lambda: status() == "STOPPED", "the sensor is off")  # the switch moves before Dagster has answered

    ticks = page.get_by_role("row").filter(has_text="View logs")
    newest = ticks.first.get_by_role("cell").first
    before = newest.inner_text()
    switch_sensor(page, on=True)
    wait_until(lambda: status() == "RUNNING", "the sensor is on")
    expect(newest).not_to_have_text(before)

    ticks.first.get_by_role("button", name="requested").click()
    expect(page.get_by_role("dialog")).to_contain_text("orders: ")
    picture("sensor-tick")
