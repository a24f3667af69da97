"""Options of a member that uses the transport, such as `--redis-url` and `PSYCHE_REDIS_URL`."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MIB = 2**20


class RedisSettings(BaseModel):
    """Where Redis is, and how much of it and of time this member uses."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0",
        max_length=1024,
        pattern=r"^(redis|rediss|unix)://.+",
        repr=False,
        description="The server: redis://[USER:PASSWORD@]HOST:PORT/DATABASE, rediss:// with TLS, or unix://PATH.",
    )
    redis_prefix: str = Field(
        default="psyche",
        pattern=r"^[A-Za-z0-9_.-]{1,40}$",
        description="What the names of all keys begin with; the same for all members of a run.",
    )
    redis_max_payload_bytes: int = Field(
        default=256 * MIB, ge=MIB, le=64 * 1024 * MIB, description="The largest payload that this member puts into Redis."
    )
    redis_memory_bytes: int = Field(
        default=1024 * MIB,
        ge=MIB,
        le=1024 * 1024 * MIB,
        description="Most bytes of payloads that this member has in Redis at one time; the oldest go first.",
    )
    redis_payload_seconds: int = Field(
        default=120, ge=5, le=86_400, description="Seconds after which Redis drops a payload that nobody asked for again."
    )
    redis_connect_seconds: float = Field(
        default=5.0, ge=0.1, le=300.0, description="Seconds that a connection to Redis may take."
    )
    redis_answer_seconds: float = Field(
        default=10.0, ge=0.1, le=300.0, description="Seconds that Redis may take to answer before its connection counts as lost."
    )
    redis_silence_seconds: float = Field(
        default=20.0, ge=0.5, le=300.0, description="Seconds without a sign of life after which a member counts as gone."
    )

    @model_validator(mode="after")
    def _one_payload_fits(self) -> Self:
        if self.redis_max_payload_bytes > self.redis_memory_bytes:
            message = (
                f"redis_max_payload_bytes is {self.redis_max_payload_bytes} and redis_memory_bytes {self.redis_memory_bytes}: "
                "one payload must fit into the memory of all; raise the second or lower the first"
            )
            raise ValueError(message)
        return self
