"""A CA of these tests' own, and certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A CA. Attributes: file: its certificate, as PEM."""

    def __init__(self, folder: Path, name: str = "a private CA") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name, self._key = folder, _named(name), ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key()
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        made = (
            self._builder(self._name, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "ca.pem"
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def certificate(self, *, host: str = "localhost", address: str = "127.0.0.1", expired: bool = False) -> Path:
        """Key and certificate of a server at these places, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        places: list[x509.GeneralName] = [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address(address))]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = (
            self._builder(_named(host), key.public_key(), expired=expired)
            .add_extension(x509.SubjectAlternativeName(places), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file = self._folder / "server.pem"
        file.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
        return file

    def _builder(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey, *, expired: bool = False
    ) -> x509.CertificateBuilder:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * day)
            .not_valid_after(now - day if expired else now + day)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
