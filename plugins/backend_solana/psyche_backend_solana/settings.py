"""Settings of the Solana backend: endpoints, wallet, authorization, programs, fees.

Sources in order of precedence: options, environment variables `PSYCHE_<NAME>`, the defaults here. A secret outside a wallet file
is read from the environment only (`PSYCHE_RAW_WALLET_PRIVATE_KEY`, or `RAW_WALLET_PRIVATE_KEY` as elsewhere), because every user
of the machine can read the command line of a process. Two wallets are an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import AliasChoices, Field, JsonValue, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from solders.pubkey import Pubkey

from psyche_backend_solana.programs.addresses import AUTHORIZER, BOND, COORDINATOR, MINING_POOL, TREASURER
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.endpoints import Endpoint, parse_endpoints
from psyche_backend_solana.wallet import Wallet
from psyche_core.errors import IdentityError

_CHAIN: dict[str, JsonValue] = {"group": "Chain"}
_PROGRAMS: dict[str, JsonValue] = {"group": "Programs on the chain"}
_WALLET: dict[str, JsonValue] = {"group": "Wallet and fees"}
"""Headings under which commands show the options."""

RAW_WALLET = "RAW_WALLET_PRIVATE_KEY"
DEFAULT_WALLET = "~/.config/solana/id.json"
"""Where `solana-keygen new` writes, and what every command of Solana uses if no other wallet is named."""


class ChainSettings(BaseSettings):
    """The chain to use."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="PSYCHE_", extra="forbid", frozen=True, env_ignore_empty=True, populate_by_name=True
    )

    rpc: str | None = Field(
        default=None, json_schema_extra=_CHAIN, description="RPC endpoint, http(s)://HOST[:PORT]. Default: a local chain's."
    )
    ws_rpc: str | None = Field(
        default=None, json_schema_extra=_CHAIN, description="Its websocket, ws(s)://HOST[:PORT]. Default: derived from --rpc."
    )
    rpc_2: str | None = Field(
        default=None, json_schema_extra=_CHAIN, description="Second RPC endpoint, used when the first fails."
    )
    ws_rpc_2: str | None = Field(default=None, json_schema_extra=_CHAIN, description="Its websocket.")
    rpc_3: str | None = Field(default=None, json_schema_extra=_CHAIN, description="Third RPC endpoint.")
    ws_rpc_3: str | None = Field(default=None, json_schema_extra=_CHAIN, description="Its websocket.")
    coordinator_program_id: str = Field(
        default=str(COORDINATOR),
        json_schema_extra=_PROGRAMS,
        description="Address of the coordinator program. Default: the one on local chains.",
    )
    authorizer_program_id: str = Field(
        default=str(AUTHORIZER), json_schema_extra=_PROGRAMS, description="Address of the authorizer program."
    )
    treasurer_program_id: str = Field(
        default=str(TREASURER), json_schema_extra=_PROGRAMS, description="Address of the treasurer program."
    )
    mining_pool_program_id: str = Field(
        default=str(MINING_POOL), json_schema_extra=_PROGRAMS, description="Address of the mining pool program."
    )
    bond_program_id: str = Field(default=str(BOND), json_schema_extra=_PROGRAMS, description="Address of the bond program.")

    own_chain: bool = Field(
        default=False,
        json_schema_extra=_PROGRAMS,
        description="Use the shipped program addresses although the endpoint is not in a private network, because nobody else "
        "can deploy programs on this chain. Has no effect on public clusters.",
    )
    owner: str | None = Field(
        default=None,
        json_schema_extra=_CHAIN,
        description="Wallet that must own the run, directly or through the treasurer. Any other run is refused.",
    )

    @field_validator("owner")
    @classmethod
    def _is_an_owner(cls, value: str | None) -> str | None:
        return None if value is None else str(parse_address(value))

    @field_validator(
        "coordinator_program_id", "authorizer_program_id", "treasurer_program_id", "mining_pool_program_id", "bond_program_id"
    )
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        return str(parse_address(value))

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints in order of preference. Raises ConfigError."""
        return parse_endpoints(((self.rpc, self.ws_rpc), (self.rpc_2, self.ws_rpc_2), (self.rpc_3, self.ws_rpc_3)))

    @property
    def programs(self) -> Programs:
        """The addresses of the programs."""
        return Programs(
            coordinator=Pubkey.from_string(self.coordinator_program_id),
            authorizer=Pubkey.from_string(self.authorizer_program_id),
            treasurer=Pubkey.from_string(self.treasurer_program_id),
            mining_pool=Pubkey.from_string(self.mining_pool_program_id),
            bond=Pubkey.from_string(self.bond_program_id),
            own_chain=self.own_chain,
        )

    @property
    def wanted_owner(self) -> Pubkey | None:
        """The required owner of the run; None allows any."""
        return None if self.owner is None else Pubkey.from_string(self.owner)


class WalletSettings(ChainSettings):
    """The chain to use, and the wallet that pays."""

    wallet_private_key_path: Path | None = Field(
        default=None,
        json_schema_extra=_WALLET | {"short": "-w"},
        description=(
            "Wallet file in the format of solana-keygen. Instead, the environment variable RAW_WALLET_PRIVATE_KEY may hold the "
            "secret, as a JSON array or base58. Default: ~/.config/solana/id.json, if it exists."
        ),
    )
    raw_wallet_private_key: SecretStr | None = Field(
        default=None,
        description="The wallet's secret.",
        validation_alias=AliasChoices("PSYCHE_" + RAW_WALLET, RAW_WALLET),
        repr=False,
        json_schema_extra={"option": False},
    )
    allow_readable_wallet: bool = Field(
        default=False, json_schema_extra=_WALLET, description="Accept a wallet file that other users of this machine can read."
    )
    priority_fee: int = Field(
        default=0,
        ge=0,
        json_schema_extra=_WALLET,
        description="Price of each compute unit, paid in addition to the fee, in millionths of a lamport.",
    )

    def wallet(self) -> Wallet:
        """The wallet. Raises IdentityError if none or two were given, or if it cannot be read."""
        if self.wallet_private_key_path is not None and self.raw_wallet_private_key is not None:
            message = f"both --wallet-private-key-path and the environment variable {RAW_WALLET} name a wallet; use one of them"
            raise IdentityError(message)
        if self.raw_wallet_private_key is not None:
            secret = self.raw_wallet_private_key.get_secret_value()
            return Wallet.parse(secret, source=f"the environment variable {RAW_WALLET}")
        path = self.wallet_file
        if path is None:
            message = (
                f"no wallet given: use --wallet-private-key-path FILE, or the environment variable {RAW_WALLET}; "
                "`solana-keygen new` makes ~/.config/solana/id.json, which is used if nothing else is given"
            )
            raise IdentityError(message)

        return Wallet.load(path, allow_readable_by_others=self.allow_readable_wallet)

    @property
    def wallet_file(self) -> Path | None:
        """The wallet's file: the given one, else that of Solana's command line if it exists; None for a secret or no wallet."""
        if self.wallet_private_key_path is not None or self.raw_wallet_private_key is not None:
            return self.wallet_private_key_path
        try:
            default = Path(DEFAULT_WALLET).expanduser()
        except RuntimeError:  # this user has no home
            return None
        return default if default.exists() else None


class SolanaSettings(WalletSettings):
    """Settings of `psyche client train --backend solana`, besides those of every client."""

    authorizer: str | None = Field(
        default=None,
        json_schema_extra=_WALLET,
        description=(
            "Join with the authorization of this wallet, which named ours as its delegate. Default: the run's "
            "authorization for everybody, or the one for our wallet."
        ),
    )

    @field_validator("authorizer")
    @classmethod
    def _is_a_wallet(cls, value: str | None) -> str | None:
        return None if value is None else str(parse_address(value))

    @property
    def grantees(self) -> tuple[Pubkey, ...] | None:
        """The wallets whose authorizations are tried; None for the default ones."""
        return None if self.authorizer is None else (Pubkey.from_string(self.authorizer),)


def parse_address(text: str) -> Pubkey:
    """Parse an address in base58. Raises ValueError with a sentence."""
    try:
        return Pubkey.from_string(text.strip())
    except ValueError:
        message = "must be an address: 32 bytes as base58"
        raise ValueError(message) from None
