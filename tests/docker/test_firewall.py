"""What tests/docker/firewall.sh takes back of an engine's rules, by stand-ins for iptables."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("firewall.sh")
OURS = "*filter\n:FORWARD ACCEPT [0:0]\n:MINE - [0:0]\n-A FORWARD -i eth0 -j MINE\nCOMMIT\n"
ENGINES = """\
*filter
:FORWARD DROP [3:180]
:MINE - [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i br-0123456789ab -j ACCEPT
-A FORWARD -i eth0 -j MINE
-A FORWARD -i eth1 -j MINE
-A DOCKER-USER -j RETURN
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
COMMIT
"""
TAKEN_BACK = [
    "-P FORWARD ACCEPT",
    "-t filter -D FORWARD -j DOCKER-USER",
    "-t filter -D FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-t filter -D FORWARD -i br-0123456789ab -j ACCEPT",
    "-t filter -D DOCKER-USER -j RETURN",
    "-t nat -D POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
    "-t filter -X DOCKER",
    "-t filter -X DOCKER-USER",
    "-t nat -X DOCKER",
]


class Host:
    """Whose rules are ``rules``; ``asked`` is what iptables was to change."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rules, self.log = folder, folder / "rules", folder / "log"
        (folder / "bin").mkdir()
        (folder / "ip_forward").write_text("0\n")
        for tool, text in (
            ("iptables-save", f"cat {self.rules}"),
            ("ip6tables-save", "exit 1"),
            ("iptables", f'echo "$*" >> {self.log}'),
            ("ip6tables", f'echo "6: $*" >> {self.log}'),
        ):
            (folder / "bin" / tool).write_text(f"#!/bin/sh\n{text}\n")
            (folder / "bin" / tool).chmod(0o755)

    def run(self, what: str) -> None:
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        environ = {"PATH": path, "IP_FORWARD_FILE": str(self.folder / "ip_forward")}
        subprocess.run([SCRIPT, what, self.folder], env=environ, timeout=20, check=True)

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("before", [OURS, ""])
def test_what_the_engine_made_is_removed_and_nothing_else(host: Host, before: str) -> None:
    host.rules.write_text(before)
    host.run("save")
    host.rules.write_text(ENGINES)
    (host.folder / "ip_forward").write_text("1\n")
    host.run("restore")
    assert host.asked() == TAKEN_BACK
    assert (host.folder / "ip_forward").read_text() == "0\n"


def test_another_engines_rules_stay(host: Host) -> None:
    host.rules.write_text(ENGINES)
    host.run("save")
    host.run("restore")
    assert host.asked() == []


def test_without_a_note_of_what_was_there_nothing_is_touched(host: Host) -> None:
    host.rules.write_text(ENGINES)
    host.run("restore")
    assert host.asked() == []
