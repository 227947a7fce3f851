"""A connection pool in front of the tests' server: pgbouncer, mostly in transaction mode, as Debian packages it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.patience import patience, wait_until

# Debian installs it in a folder that is only on root's path
PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@contextmanager
def pooled(
    dsn: str, folder: Path, sessions: int, clients: int = 100, *, mode: str = "transaction", settings: str = ""
) -> Iterator[str]:
    """Yield a DSN at which clients share a limited number of server sessions, a transaction at a time."""
    assert PROGRAM is not None
    server = conninfo_to_dict(dsn)
    target = " ".join(f"{key}={server[key]}" for key in ("host", "port", "dbname", "user") if key in server)
    users = folder / "users.txt"
    users.write_text(f'"{server["user"]}" ""\n')
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\nstore = {target}\n[pgbouncer]\npool_mode = {mode}\n{settings}\ndefault_pool_size = {sessions}\n"
        f"max_client_conn = {clients}\n"
        f"listen_addr =\nunix_socket_dir = {folder}\nlisten_port = 6432\nauth_type = any\nauth_file = {users}\n"
        f"logfile = {folder}/log\npidfile = {folder}/pid\nignore_startup_parameters = extra_float_digits,options\n"
    )
    # pgbouncer refuses to run as root; the server's account can use the server's socket
    account = Path(str(server["host"])).stat() if os.geteuid() == 0 else None
    if account:
        for path in (folder, users, config):
            os.chown(path, account.st_uid, account.st_gid)
    process = subprocess.Popen(
        [PROGRAM, str(config)], user=account and account.st_uid, group=account and account.st_gid,
        extra_groups=account and [], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = make_conninfo("", host=str(folder), port=6432, dbname="store", user=str(server["user"]))

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text() if (folder / "log").exists() else "it did not start"
        try:
            psycopg.connect(address, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        wait_until(answers, "the pool answers")
        yield address
    finally:
        process.terminate()
        process.wait(patience())
