"""TLS, on the port and on the way to it. Knows no HTTP."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

from shared.settings import ApiSettings, ConfigError


def server_context(settings: ApiSettings) -> ssl.SSLContext | None:
    """What the port is opened with; None for plain HTTP. Raises ConfigError, which names the flag at fault."""
    if settings.ssl_cert_file is None or settings.ssl_key_file is None:
        return None
    certificate, key = settings.ssl_cert_file, settings.ssl_key_file
    _check_readable("--ssl-cert-file", certificate)
    _check_readable("--ssl-key-file", key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)  # only to tell which of the two files is at fault
    except ssl.SSLError:
        raise ConfigError(f"--ssl-cert-file: {certificate} is no certificate in PEM") from None
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"--ssl-key-file: {key} is not the key of --ssl-cert-file, {certificate}") from None
        raise ConfigError(f"--ssl-key-file: {key} is no private key in PEM") from None
    return context


def _check_readable(flag: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"{flag}: {path}: {(error.strerror or str(error)).lower()}") from None


def _no_password() -> str:
    """Without this, a terminal would be asked for one, and a service would wait for ever."""
    raise ConfigError("--ssl-key-file is encrypted: give it without a password, in a file that others cannot read")


def fingerprint(certificate: Path) -> bytes:
    """SHA-256 of the first certificate in a file: by it a server is known that we start ourselves, whatever the names
    and dates in it. The file has been checked."""
    text = certificate.read_text()
    begin, end = text.index("-----BEGIN CERTIFICATE"), text.index("-----END CERTIFICATE")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[begin:end] + "-----END CERTIFICATE-----\n")).digest()
