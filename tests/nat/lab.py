"""A network laboratory: hosts behind routers of every kind, in network namespaces joined by veth and nftables.

Nothing leaves the machine: the "internet" is a bridge in a namespace of its own. Each namespace is held by a process that ends
with the pipe it reads, so all of it is gone when this process is. It needs to be root in a user namespace (`tools/loopback.sh`),
and the programs unshare, nsenter, ip and nft; `missing` says what is not there.

Addresses: internet 45.12.0.0/24 (the relay's host .10, other public hosts from .11, routers from .101), home networks
192.168.N.0/24, for IPv6 2a10:1:0::/64 and 2a10:1:N::/64. They only look public: programs treat documentation ranges specially.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from typing import IO, Self

KINDS = ("public", "full", "port", "shift", "sym", "sym6", "noudp")
"""public: no router. full: full cone, whoever finds the port gets through. port: port-restricted cone, same port outside.
shift: the same with another port outside. sym: symmetric, another port for each destination. sym6: sym, and IPv6 behind a
stateful firewall. noudp: UDP does not get out. A host `beside` another is in the same home network."""

FIXED_PORT = 4433
"""Local UDP port that members behind a router of the kind `shift` must bind."""

_NEEDED = ("unshare", "nsenter", "ip", "nft")


@functools.cache
def missing() -> str:
    """Why there can be no laboratory on this system, "" where there can be one."""
    absent = [name for name in _NEEDED if shutil.which(name) is None]
    if absent:
        return f"the NAT laboratory needs {', '.join(absent)} (Debian: apt install iproute2 nftables util-linux)"

    try:
        with Lab() as lab:
            lab.behind("sym", "probe")
    except (OSError, subprocess.SubprocessError) as error:
        return f"the NAT laboratory cannot be set up here (run it through tools/loopback.sh): {error}"

    return ""


class Namespace:
    """A network namespace, and whatever runs in it."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != b"up\n":
            message = f"unshare -n: {self._holder.stderr.read().decode(errors='replace').strip() or 'no namespace'}"
            raise OSError(message)

        self.pid = self._holder.pid

    def command(self, *argv: str) -> list[str]:
        """The command line that runs a program here."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *argv]

    def do(self, *argv: str, given: str | None = None) -> str:
        """Run a program to its end and return its output. Raises OSError with what it complained about."""
        done = subprocess.run(self.command(*argv), input=given, capture_output=True, text=True, check=False)
        if done.returncode:
            message = f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}"
            raise OSError(message)

        return done.stdout

    def ip(self, *lines: str) -> None:
        """Lines of `ip -batch`."""
        self.do("ip", "-batch", "-", given="\n".join(lines) + "\n")

    def ip6(self, *lines: str) -> None:
        """Lines of `ip -6 -batch`."""
        self.do("ip", "-6", "-batch", "-", given="\n".join(lines) + "\n")

    def set_system(self, name: str, value: str) -> None:
        """Write a file below /proc/sys/net."""
        self.do("sh", "-c", f"echo {value} > /proc/sys/net/{name}")

    def close(self) -> None:
        """End the holder; the namespace goes with its last process."""
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if pipe is not None:
                pipe.close()
        self._holder.wait()


@dataclass
class Host:
    """A machine. address: its own IPv4 address. outside: the IPv4 address that others see. address6: "" without IPv6.

    port: the internet's end of a public host's cable.
    """

    name: str
    kind: str
    space: Namespace
    address: str
    outside: str
    router: Router | None = None
    address6: str = ""
    port: str = ""
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self,
        *argv: str,
        stdout: int | IO[str] | None = None,
        stderr: int | IO[str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
    ) -> subprocess.Popen[str]:
        """Start a program here; the laboratory kills it at its end."""
        process = subprocess.Popen(
            self.space.command(*argv), stdout=stdout, stderr=stderr, stdin=stdin, text=True, env=env, cwd=cwd
        )
        self.processes.append(process)
        return process

    def refuse_port(self, port: int) -> None:
        """Answer at a port as if no program listened, also to those who are connected; UDP gets no answer."""
        self.space.do(
            "nft",
            "-f",
            "-",
            given=f"""table inet refused {{
              chain input {{ type filter hook input priority 0; tcp dport {port} reject with tcp reset; udp dport {port} drop
              }}
            }}""",
        )

    def accept_port(self) -> None:
        """The end of `refuse_port`."""
        self.space.do("nft", "delete table inet refused")

    def close(self) -> None:
        """Kill what runs here."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@dataclass
class Router:
    """A home router. number: of its home network. kind: see KINDS."""

    number: int
    kind: str
    space: Namespace

    def forget_mappings(self) -> None:
        """Forget all connections, as a router does that restarts. Needs the program conntrack."""
        self.space.do("conntrack", "-F")

    def cut_udp(self) -> None:
        """Let no UDP through from now on."""
        self.space.do("nft", "insert rule ip home forward meta l4proto udp drop")

    def mend_udp(self) -> None:
        """Let UDP through again."""
        self.space.do("nft", "-f", "-", given=_rules(self.kind, self.number, outside=_outside(self.number), fresh=False))

    def new_outside_address(self) -> str:
        """Get another address from the provider, and forget all connections; returns it."""
        address = _outside(self.number + 50)
        self.space.ip("addr flush dev wan scope global", f"addr add {address}/24 dev wan")
        self.space.do("nft", "-f", "-", given=_rules(self.kind, self.number, outside=address, fresh=False))
        self.forget_mappings()
        return address


class Lab:
    """A context manager that holds the internet and all hosts.

    `relay` is a public host at 45.12.0.10; `internet` is the namespace of the bridge.
    """

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self._spaces: list[Namespace] = []
        self._links = 0
        self._public = 0
        self._routers = 0

    def __enter__(self) -> Self:
        try:
            self.internet = self._space()
            self.internet.ip("link add br0 type bridge", "link set br0 up")
            self.relay = self.public("relay")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in reversed(self.hosts):
            host.close()
        for space in reversed(self._spaces):
            space.close()

    def host(self, kind: str, name: str) -> Host:
        """A host of any kind in KINDS."""
        return self.public(name) if kind == "public" else self.behind(kind, name)

    def public(self, name: str) -> Host:
        """A host with a public address and no router."""
        space = self._space()
        address = f"45.12.0.{10 + self._public}"
        self._public += 1
        port = self._to_internet(space, "eth0")
        space.ip(f"addr add {address}/24 dev eth0", "link set eth0 up")
        return self._keep(Host(name, "public", space, address, address, port=port))

    def behind(self, kind: str, name: str) -> Host:
        """A host behind a router of its own."""
        space = self._space()
        host = Host(name, kind, space, "", "")
        self._plug_in(host, kind)
        return self._keep(host)

    def move(self, host: Host, kind: str) -> None:
        """Take a host from its home network into another one, behind another router: its interface gets another address."""
        host.space.ip("link del eth0")
        self._plug_in(host, kind)

    def _plug_in(self, host: Host, kind: str) -> None:
        """Put a host behind a new router."""
        self._routers += 1
        number, space = self._routers, host.space
        router = Router(number, kind, self._space())
        self._to_internet(router.space, "wan")
        self._home_link(router.space, "lan", space)
        router.space.ip(
            f"addr add {_outside(number)}/24 dev wan",
            "link set wan up",
            "link add home type bridge",
            f"addr add 192.168.{number}.1/24 dev home",
            "link set home up",
            "link set lan master home up",
        )
        router.space.set_system("ipv4/ip_forward", "1")
        router.space.do("nft", "-f", "-", given=_rules(kind, number, outside=_outside(number), fresh=True))
        space.ip(
            f"addr add 192.168.{number}.2/24 dev eth0", "link set eth0 up", f"route add default via 192.168.{number}.1 dev eth0"
        )
        host.kind, host.address, host.outside, host.router = kind, f"192.168.{number}.2", _outside(number), router
        if kind == "sym6":
            self._add_ipv6(host, router)

    def beside(self, neighbour: Host, name: str) -> Host:
        """Another host in the same home network."""
        router = neighbour.router
        assert router is not None, "a public host has no home network"
        space = self._space()
        self._home_link(router.space, "lan2", space)
        router.space.ip("link set lan2 master home up")
        address = f"192.168.{router.number}.3"
        gateway = f"192.168.{router.number}.1"
        space.ip(f"addr add {address}/24 dev eth0", "link set eth0 up", f"route add default via {gateway} dev eth0")
        return self._keep(Host(name, "lan", space, address, neighbour.outside, router))

    def _add_ipv6(self, host: Host, router: Router) -> None:
        number = router.number
        router.space.set_system("ipv6/conf/all/forwarding", "1")
        router.space.ip6(f"addr add 2a10:1::{number}/64 dev wan nodad", f"addr add 2a10:1:{number}::1/64 dev home nodad")
        host.address6 = f"2a10:1:{number}::2"
        host.space.ip6(f"addr add {host.address6}/64 dev eth0 nodad", f"route add default via 2a10:1:{number}::1 dev eth0")
        router.space.do("nft", "-f", "-", given=_FIREWALL6)
        for other in self.hosts:
            if other.router is not None and other.address6:
                theirs = other.router.number
                router.space.ip6(f"route add 2a10:1:{theirs}::/64 via 2a10:1::{theirs} dev wan")
                other.router.space.ip6(f"route add 2a10:1:{number}::/64 via 2a10:1::{number} dev wan")

    def _to_internet(self, space: Namespace, device: str) -> str:
        self._links += 1
        port = f"p{self._links}"
        self.internet.ip(f"link add {port} type veth peer name {device} netns {space.pid}", f"link set {port} master br0 up")
        return port

    def _home_link(self, router: Namespace, port: str, space: Namespace) -> None:
        router.ip(f"link add {port} type veth peer name eth0 netns {space.pid}")

    def _space(self) -> Namespace:
        space = Namespace()
        self._spaces.append(space)
        return space

    def _keep(self, host: Host) -> Host:
        self.hosts.append(host)
        return host


def interrupt(process: subprocess.Popen[str], *, seconds: float = 20.0) -> int:
    """Ask a program to end, and wait for it; returns its exit status."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGTERM)
    return process.wait(seconds)


def _outside(number: int) -> str:
    return f"45.12.0.{100 + number}"


def _rules(kind: str, number: int, *, outside: str, fresh: bool) -> str:
    """nftables rules of a router. fresh: there are none yet."""
    host = f"192.168.{number}.2"
    masquerade = {
        "sym": "oifname wan masquerade fully-random",
        "sym6": "oifname wan masquerade fully-random",
        "shift": f"oifname wan udp sport {FIXED_PORT} snat to {outside}:{50000 + number}; oifname wan masquerade",
    }.get(kind, "oifname wan masquerade")
    inward = f"iifname wan udp dport 1024-65535 dnat to {host}" if kind == "full" else ""
    return f"""{"" if fresh else "delete table ip home"}
table ip home {{
  chain prerouting {{ type nat hook prerouting priority -100; {inward}
  }}
  chain postrouting {{ type nat hook postrouting priority 100; {masquerade}
  }}
  chain input {{ type filter hook input priority 0; iifname wan ct state new drop
  }}
  chain forward {{ type filter hook forward priority 0; policy drop; {"meta l4proto udp drop" if kind == "noudp" else ""}
    ct state established,related accept
    iifname home accept
    {"iifname wan accept" if kind == "full" else ""}
  }}
}}
"""


_FIREWALL6 = """
table ip6 home {
  chain forward { type filter hook forward priority 0; policy drop; ct state established,related accept
    iifname home accept
  }
}
"""
