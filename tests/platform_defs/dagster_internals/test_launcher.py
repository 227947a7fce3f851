"""The fate of a run when its code server does not answer in time, or not at all."""

import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import grpc
import pytest

from millrace.platform_defs.dagster_internals.launcher import PatientRunLauncher
from millrace.platform_defs.loading import build_defs


class _Silent(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Accepts every call, and answers none until the end."""

    def __init__(self, end: threading.Event) -> None:
        self._end = end

    def service(self, _: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler":
        return grpc.unary_unary_rpc_method_handler(lambda *_: self._end.wait())


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    end = threading.Event()
    with futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=[_Silent(end)])
        server.add_insecure_port(f"unix:{tmp_path / 'silent'}")
        server.start()
        yield str(tmp_path / "silent")
        end.set()
        server.stop(None).wait()


def test_a_run_is_waited_for_while_its_code_server_is_there(
    instance: dg.DagsterInstance, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = PatientRunLauncher()
    launcher.register_instance(instance)
    run = instance.create_run_for_job(build_defs().resolve_job_def("apply_schema"))
    context = SimpleNamespace(dagster_run=run)

    def asking(socket: str) -> None:
        # as Dagster's own client does, which waits for a minute
        def ask(*_: object) -> None:
            with grpc.insecure_channel(f"unix:{socket}") as channel:
                try:
                    channel.unary_unary("/api.DagsterApi/StartRun")(b"", timeout=0.1)
                except grpc.RpcError as error:
                    raise dg.DagsterError("no answer") from error

        monkeypatch.setattr(dg.DefaultRunLauncher, "launch_run", ask)

    asking(silent)
    launcher.launch_run(context)
    told = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    assert [entry.message for entry in told] == ["Its process takes long to start, and is waited for."]
    asking(f"{silent}-is-gone")
    with pytest.raises(dg.DagsterError):
        launcher.launch_run(context)
