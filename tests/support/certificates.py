"""A certificate authority for tests: certificates of servers and clients, and lists of revoked ones."""

from __future__ import annotations

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_NOW = datetime.datetime.now(datetime.UTC)
_BEGIN, _END = _NOW - datetime.timedelta(days=1), _NOW + datetime.timedelta(days=30)


class Authority:
    """Signs certificates. Files are PEM; `NAME.pem` holds certificate and key."""

    def __init__(self, folder, name="authority"):
        self.folder, self.name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = self._sign(self.name, self._key.public_key(), constraints)
        self.path = folder / f"{name}.crt"
        self.path.write_bytes(self.certificate.public_bytes(Encoding.PEM))

    def issue(self, name):
        """The path of a new certificate with its key; it is made out to this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._sign(subject, key.public_key(), x509.BasicConstraints(ca=False, path_length=None))
        path = self.folder / f"{name}.pem"
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(made.public_bytes(Encoding.PEM) + text)
        return path

    def revoke(self, *paths):
        """Add a list of these revoked certificates to the authority's file."""
        listed = x509.CertificateRevocationListBuilder().issuer_name(self.name).last_update(_BEGIN).next_update(_END)
        for path in paths:
            number = x509.load_pem_x509_certificate(path.read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(_BEGIN).build()
            listed = listed.add_revoked_certificate(revoked)
        text = listed.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        self.path.write_bytes(self.certificate.public_bytes(Encoding.PEM) + text)

    def _sign(self, subject, public_key, constraints):
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(public_key)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(_BEGIN).not_valid_after(_END)
        return made.add_extension(constraints, True).add_extension(here, False).sign(self._key, hashes.SHA256())
