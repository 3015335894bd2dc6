"""Attacks over the network, the machine's own addresses included."""

from __future__ import annotations

from escapes.attack import attacks

NETWORK = "network"
_NO_SOCKET = "seccomp: socket; network namespace"
attacks(NETWORK, _NO_SOCKET)(
    connect_to_this_machine="""
        import socket
        print(socket.create_connection(("127.0.0.1", @PORT@), 2).recv(100))
    """,
    fetch_a_page="""
        import urllib.request
        print(urllib.request.urlopen("http://localhost:@PORT@/", timeout=2).read())
    """,
    connect_asynchronously="""
        import asyncio

        async def read():
            reader, writer = await asyncio.open_connection("127.0.0.1", @PORT@)
            print(await reader.read())

        asyncio.run(read())
    """,
    send_a_datagram="""
        import socket, time
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", @DATAGRAM_PORT@))
        time.sleep(0.05)
    """,
    listen_on_a_port="""
        import socket
        server = socket.socket()
        server.bind(("0.0.0.0", 0))
        server.listen()
        print("@WON@")
    """,
    connect_by_a_child="""
        import subprocess, sys
        code = "import socket; print(socket.create_connection(('127.0.0.1', @PORT@), 2).recv(100))"
        subprocess.run([sys.executable, "-c", code])
    """,
    connect_by_raw_calls="""
        import ctypes, os, socket, struct
        libc = ctypes.CDLL(None)
        numbers = {"x86_64": (41, 42), "aarch64": (198, 203)}[os.uname().machine]
        handle = libc.syscall(numbers[0], 2, 1, 0)
        address = struct.pack("=H", 2) + struct.pack("!H", @PORT@) + socket.inet_aton("127.0.0.1") + bytes(8)
        libc.syscall(numbers[1], handle, address, 16)
        print(os.read(handle, 100))
    """,
)
attacks(NETWORK, _NO_SOCKET + "; mount namespace")(
    connect_to_a_path="""
        import socket
        client = socket.socket(socket.AF_UNIX)
        client.connect("@WORLD@/socket")
        print(client.recv(100))
    """
)
attacks(NETWORK, _NO_SOCKET + "; Landlock")(
    connect_to_an_abstract_name="""
        import socket
        client = socket.socket(socket.AF_UNIX)
        client.connect("\\0@MARK@")
        print(client.recv(100))
    """
)
attacks(NETWORK, "seccomp: socketpair of datagrams; network namespace; Landlock")(
    send_from_one_of_a_pair="""
        import socket, time
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.sendto(b"x", "\\0@MARK@-datagrams")
        time.sleep(0.05)
    """
)
