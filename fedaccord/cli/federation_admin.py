"""`fedaccord federation` makes, renews and revokes keys and certificates, and tells how a federation stands."""

import argparse
import json
from pathlib import Path
from typing import Any

from fedaccord.cli.outcome import try_again
from fedaccord.cli.reach import contents, need_flower, reach_options, root_certificates
from fedaccord.core.errors import EngineError, RunError, SettingsError


def add(federation: Any) -> None:
    """Add the parsers of federation status, certificates, renew, key, register and revoke."""
    reach = reach_options()
    status = federation.add_parser(
        "status",
        parents=[reach_options(required=False)],
        help="who is connected, which round, which certificates expire",
    )
    status.add_argument("--run", type=Path, metavar="FOLDER", help="the server's run folder, on this machine")
    status.add_argument("--folder", type=Path, help="of `federation up`: it knows all the rest")
    status.add_argument("--json", action="store_true", help="as one JSON line")
    status.set_defaults(command=status_command)

    days = argparse.ArgumentParser(add_help=False)
    days.add_argument("folder", type=Path, help="where the keys are")
    days.add_argument("--days", type=lifetime, default=365, help="how long they are good (365)")
    certificates = federation.add_parser(
        "certificates", parents=[days], help="make an authority, the SuperLink's certificate, a secret"
    )
    certificates.add_argument(
        "--host", action="append", required=True, help="name or address of the SuperLink; may repeat"
    )
    certificates.set_defaults(command=certificates_command)

    renew = federation.add_parser("renew", parents=[days], help="renew the SuperLink's certificate")
    renew.add_argument("--host", action="append", default=[], help="other names or addresses than before; may repeat")
    renew.set_defaults(command=renew_command)

    key = federation.add_parser("key", help="make a node's key pair")
    key.add_argument("file", type=Path, help="the private key; FILE.pub is for the SuperLink")
    key.set_defaults(command=key_command)

    for name, command, about in (
        ("register", register_command, "let the holder of a key in"),
        ("revoke", revoke_command, "let the holder of a key in no more"),
    ):
        parser = federation.add_parser(name, parents=[reach], help=about)
        parser.add_argument("public_key", type=Path, metavar="FILE.pub", help="the node's public key")
        parser.set_defaults(command=command)


def lifetime(text: str) -> int:
    """Parse a number of days that a certificate can be good for."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= CENTURY):
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to {CENTURY:,} days")
    return int(text)


CENTURY = 36_500


def certificates_command(options: argparse.Namespace) -> int:
    """Make an authority, the SuperLink's certificate and a secret, in a folder that has none yet."""
    need_flower()
    from fedaccord.flower.certificates import make_authority

    if (options.folder / "ca.key").exists():
        whole = (options.folder / "secret").exists()  # which is written last
        told = "it is never overwritten" if whole else "it was not finished: remove the folder and make another"
        raise RunError(f"{options.folder}: has an authority already; {told}")
    make_authority(options.folder, options.host, options.days)
    print(f"{options.folder}: ca.pem is for all; ca.key, server.pem, server.key and secret stay with the SuperLink")
    return 0


def renew_command(options: argparse.Namespace) -> int:
    """Renew the SuperLink's certificate, and the authority's if that would expire first."""
    need_flower()
    from fedaccord.flower.certificates import renew

    authority = renew(options.folder, options.days, options.host)
    print(f"{options.folder}: server.pem is new, good for {options.days} days; restart the SuperLink")
    if authority:
        print(
            f"{options.folder}: ca.pem is new too: bring it to all nodes before the old one expires, and restart them"
        )
    return 0


def key_command(options: argparse.Namespace) -> int:
    """Make a node's key pair."""
    need_flower()
    from fedaccord.flower.certificates import make_node_key

    make_node_key(options.file)
    print(f"{options.file} stays on this machine; register {options.file}.pub at the SuperLink")
    return 0


def register_command(options: argparse.Namespace) -> int:
    """Let the holder of a key into the federation."""
    need_flower()
    from fedaccord.flower.adapter import register

    try:
        register(link_of(options), options.public_key)
    except EngineError as error:
        return try_again(error)
    print(f"{options.public_key}: its holder may come in")
    return 0


def revoke_command(options: argparse.Namespace) -> int:
    """Shut the holder of a key out of the federation, at once and for ever: a SuperLink takes no key a second time."""
    need_flower()
    from fedaccord.flower.adapter import unregister

    try:
        node = unregister(link_of(options), options.public_key)
    except EngineError as error:
        return try_again(error)
    print(f"{options.public_key}: revoked; node {node} is not let in any more, and the site needs a new key")
    return 0


def status_command(options: argparse.Namespace) -> int:
    """Tell who is connected, which round it is, the last loss, and when certificates expire."""
    need_flower()
    from fedaccord.flower.local import ADDRESS
    from fedaccord.runtime.status import lines_of, status_of

    if options.folder is not None:
        found = contents(options.folder / ADDRESS)
        options.superlink, options.run = (found or b"").decode(), options.folder / "run"
        if (options.folder / "keys").is_dir():
            options.root_certificates = options.folder / "keys" / "ca.pem"
        else:
            options.insecure = True
    if options.superlink is None:
        raise SettingsError("--superlink HOST:PORT is needed, or --folder FOLDER of `federation up`")
    try:
        status = status_of(link_of(options), options.run)
    except EngineError as error:
        return try_again(error)
    print(json.dumps(status) if options.json else "\n".join(lines_of(status)))
    return 0


def link_of(options: argparse.Namespace) -> Any:
    """Return the link to the SuperLink that the options describe."""
    from fedaccord.flower.certificates import Link

    return Link(options.superlink, root_certificates(options))
