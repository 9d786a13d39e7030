"""Certificates change while connections come and go, and nobody notices."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from typing import TYPE_CHECKING

import pytest
from blockbuster import blockbuster_ctx

from tests.eventually import eventually
from tests.unit.server.calling import Caller, serving
from unwind.certificates import Authority, KeyPair
from unwind.server.tls import CertificateFiles, Tls, WatchedFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.unit.server.calling import Served


def trusting(*authorities: Authority, client: KeyPair | None = None, directory: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata="".join(authority.certificate.decode() for authority in authorities))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if client and directory:
        file = directory / "client.pem"
        file.write_bytes(client.certificate + client.key)
        context.load_cert_chain(file)
    return context


def server(authority: Authority) -> KeyPair:
    return authority.server("unwind", hosts=("localhost", "127.0.0.1"))


async def shown(served: Served, context: ssl.SSLContext, *, name: str | None = "localhost") -> bytes:
    """The certificate that a new connection is shown; it also has to work."""
    caller = await served.caller(tls=context, name=name)
    assert (await caller.post("/echo", b"x")).body == b"x"
    connection: ssl.SSLObject = caller.writer.get_extra_info("ssl_object")
    certificate = connection.getpeercert(binary_form=True)
    assert certificate
    return ssl.DER_cert_to_PEM_cert(certificate).encode()


async def test_a_new_certificate_is_shown_from_the_next_connection_on_and_old_ones_go_on() -> None:
    old, new = Authority("old"), Authority("new")
    first, second = server(old), server(new)
    tls = Tls(first)
    async with serving(tls=tls) as served:
        before = await served.caller(tls=trusting(old))
        assert (await before.post("/echo", b"1")).body == b"1"
        await tls.show(second)
        assert await shown(served, trusting(new)) == second.certificate
        assert await shown(served, trusting(new), name="127.0.0.1") == second.certificate, "also without a server name"
        with pytest.raises(ssl.SSLCertVerificationError):
            await shown(served, trusting(old))
        assert (await before.post("/echo", b"2")).body == b"2"


async def test_no_request_fails_while_certificates_and_authorities_change_under_load() -> None:
    authorities = [Authority(f"authority {number}") for number in range(4)]
    tls = Tls(server(authorities[0]))
    context = trusting(*authorities)
    rounds, seen = 40, set()

    async def keep_calling(port: int) -> None:
        caller = await Caller.connect(port, tls=context)
        for number in range(rounds * 5):
            body = b"%d" % number
            assert (await caller.post("/echo", body)).body == body
        await caller.close()

    async def call_anew(port: int) -> None:
        for number in range(rounds):
            caller = await Caller.connect(port, tls=context)
            seen.add(caller.writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
            body = b"%d" % number
            assert (await caller.post("/echo", body)).body == body
            await caller.close()

    async def rotate() -> None:
        for number in range(rounds):
            await tls.show(server(authorities[number % len(authorities)]))

    async with serving(tls=tls) as served, asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(keep_calling(served.port))
            group.create_task(call_anew(served.port))
        group.create_task(rotate())
    assert len(seen) > 1


@pytest.mark.parametrize(("version", "accepted"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)])
async def test_tls_is_spoken_from_1_2_on(version: str, accepted: bool) -> None:
    authority = Authority("test")
    context = trusting(authority)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # or this side would not even try
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    async with serving(tls=Tls(server(authority))) as served:
        if accepted:
            await shown(served, context)
        else:
            with pytest.raises((ssl.SSLError, OSError)):
                await shown(served, context)


async def test_only_callers_with_a_certificate_from_the_authority_get_in(tmp_path: Path) -> None:
    authority, callers, strangers = Authority("server"), Authority("callers"), Authority("callers")
    async with serving(tls=Tls(server(authority), callers=callers.certificate)) as served:
        await shown(served, trusting(authority, client=callers.client("api-server"), directory=tmp_path))
        for client in (None, strangers.client("api-server")):
            with pytest.raises((ssl.SSLError, OSError, EOFError)):
                await shown(served, trusting(authority, client=client, directory=tmp_path))


async def test_an_authority_for_callers_that_is_replaced_lets_nobody_in_any_more(tmp_path: Path) -> None:
    authority, old, new = Authority("server"), Authority("old"), Authority("new")
    tls = Tls(server(authority), callers=old.certificate)
    async with serving(tls=tls) as served:
        of_old = trusting(authority, client=old.client("api-server"), directory=tmp_path)
        of_new = trusting(authority, client=new.client("api-server"), directory=tmp_path)
        await shown(served, of_old)
        await tls.admit(new.certificate)
        await shown(served, of_new)
        with pytest.raises((ssl.SSLError, OSError, EOFError)):
            await shown(served, of_old)


async def test_a_certificate_that_cannot_be_used_changes_nothing() -> None:
    authority = Authority("test")
    good, other = server(authority), server(authority)
    tls = Tls(good)
    async with serving(tls=tls) as served:
        for bad in (
            KeyPair(certificate=other.certificate, key=good.key),
            KeyPair(certificate=b"", key=good.key),
            KeyPair(certificate=good.certificate[:-40], key=good.key),
        ):
            with pytest.raises(ValueError, match="invalid certificate or key"):
                await tls.show(bad)
        assert await shown(served, trusting(authority)) == good.certificate


async def test_nothing_blocks_the_loop_while_requests_and_certificates_come(tmp_path: Path) -> None:
    authority = Authority("test")
    first, second = server(authority), server(authority)
    paths = (tmp_path / "tls.crt", tmp_path / "tls.key")
    for path, content in zip(paths, (first.certificate, first.key), strict=True):
        path.write_bytes(content)
    context = trusting(authority)
    tls = Tls(first)
    with blockbuster_ctx():
        files = CertificateFiles(
            [WatchedFiles("--tls-cert", paths, lambda contents: tls.show(KeyPair(*contents)))], interval=0.01
        )
        running = asyncio.ensure_future(files.run())
        async with serving(tls=tls) as served:
            caller = await served.caller(tls=context)
            await asyncio.to_thread(paths[0].write_bytes, second.certificate)
            await asyncio.to_thread(paths[1].write_bytes, second.key)
            while tls.pair != second:
                assert not running.done()
                assert (await caller.post("/echo", b"x" * 100_000)).status == 200
        running.cancel()


async def test_files_are_read_again_when_they_change_and_kept_when_they_are_broken(tmp_path: Path) -> None:
    authority = Authority("test")
    first, second, third = (server(authority) for _ in range(3))
    tls = Tls(first)
    paths = (tmp_path / "tls.crt", tmp_path / "tls.key")
    tried: list[str] = []

    async def use(contents: Sequence[bytes]) -> None:
        try:
            await tls.show(KeyPair(*contents))
        except ValueError:
            tried.append("bad")
            raise
        tried.append("good")

    def write(pair: KeyPair) -> None:
        for path, content in zip(paths, (pair.certificate, pair.key), strict=True):
            path.write_bytes(content)

    async def until(count: int) -> None:
        await eventually(lambda: len(tried) >= count, f"{count} attempts")

    write(first)
    files = CertificateFiles([WatchedFiles("--tls-cert", paths, use)], interval=0.02)
    running = asyncio.ensure_future(files.run())
    await until(1)
    paths[1].write_bytes(second.key)
    await until(2)
    assert (tried, tls.pair) == (["good", "bad"], first)
    paths[0].write_bytes(second.certificate)
    await until(3)
    assert (tried, tls.pair) == (["good", "bad", "good"], second)

    # As kubelet does it: a link to a directory is exchanged, and no file is written.
    for number, pair in enumerate((second, third)):
        version = tmp_path / str(number)
        version.mkdir()
        (version / "tls.crt").write_bytes(pair.certificate)
        (version / "tls.key").write_bytes(pair.key)
    link = tmp_path / "data"
    link.symlink_to("0")
    mounted = (link / "tls.crt", link / "tls.key")
    running.cancel()
    files = CertificateFiles([WatchedFiles("--tls-cert", mounted, use)], interval=0.02)
    running = asyncio.ensure_future(files.run())
    await until(4)
    fresh = tmp_path / "fresh"
    fresh.symlink_to("1")
    fresh.replace(link)
    await until(5)
    assert tls.pair == third
    running.cancel()
