"""The UI: Dagster's webserver behind our gate; run as a module, it takes all the options of `dagster-webserver`.

Dagster's command makes its app by a function of its own module. That function is replaced here: dagster is pinned, and
the process that starts the UI asks `gated` before it counts the UI as ready.
"""

from typing import Any

import requests

from millrace.platform_defs.gate import App, Gate
from millrace.settings import Settings

FOREIGN = "no-name-of-this-ui.invalid"


def behind_gate(app: App, settings: Settings) -> Gate:
    """Put the gate that the settings describe in front of an app."""
    return Gate(app, hosts=settings.listed_ui_hosts, token=settings.ui_secret)


def gated(url: str, token: str | None, *, timeout_s: float = 4) -> bool:
    """Return whether the UI at an address answers us, and refuses a request for a foreign name."""
    bearer = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with requests.Session() as session:
            # use no proxy of the environment, and no password of a .netrc instead of our header
            session.trust_env = False
            authorized = session.get(f"{url}/server_info", headers=bearer, timeout=timeout_s)
            foreign = session.get(f"{url}/server_info", headers={**bearer, "Host": FOREIGN}, timeout=timeout_s)
    except requests.RequestException:
        return False
    return authorized.ok and not foreign.ok


def main() -> None:
    """Run Dagster's webserver with our gate in front of it."""
    from dagster_webserver import cli
    from dagster_webserver.app import create_app_from_workspace_process_context as make

    settings = Settings()

    def make_gated(*arguments: Any, **options: Any) -> Gate:  # noqa: ANN401 - handed on as they are
        return behind_gate(make(*arguments, **options), settings)

    assert vars(cli)[make.__name__] is make, (
        "this version of Dagster makes its app elsewhere: the gate would stand beside it"
    )
    vars(cli)[make.__name__] = make_gated
    cli.cli(auto_envvar_prefix="DAGSTER_WEBSERVER", prog_name="dagster-webserver")


if __name__ == "__main__":
    main()
