"""What each key of a run configuration is for: its unit, its rules beside its range, and its effect, in one sentence each.

`tools/run_configuration.py` writes `docs/reference/run-configuration.md` from this table and from the classes in `schema`, which
say types, ranges and defaults. A test compares the keys of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from psyche_core.config import data_file, schema


@dataclass(frozen=True, slots=True)
class Key:
    """unit: of the value, empty if it has none. effect: what it changes. rule: what it must also satisfy, empty for nothing."""

    unit: str
    effect: str
    rule: str = ""


_S, _SAMPLES, _STEPS, _TOKENS = "seconds", "sequences", "steps", "tokens"

DESCRIBED: Mapping[type[schema.Table], Mapping[str, Key]] = MappingProxyType(
    {
        schema.RunFile: {
            "run_id": Key("", "Name of the run. Clients give it to join.", "1 to 32 bytes of UTF-8, no / or \\, not . or .."),
            "run_state": Key(
                "", "Accepted because files of the reference have it. A server always starts by waiting for members."
            ),
            "config": Key("", "How the run is coordinated."),
            "model": Key("", "What is trained, with which data."),
            "progress": Key("", "Where a run continues that an earlier one began."),
        },
        schema.CoordinatorConfig: {
            "warmup_time": Key(
                _S,
                "Longest time for members to load the model. The first round begins earlier when all are ready.",
                "less than epoch_time",
            ),
            "cooldown_time": Key(_S, "Time at an epoch's end for storing checkpoints.", "at least 1"),
            "max_round_train_time": Key(
                _S,
                "Longest time to train in a round. A shorter one excludes slow members; rounds end earlier when witnesses agree.",
                "at least 1, less than epoch_time",
            ),
            "round_witness_time": Key(_S, "Time for witnesses to report, after a round that did not end early.", "at least 1"),
            "epoch_time": Key(_S, "Length of an epoch. Members join, and checkpoints are stored, between epochs.", "at least 1"),
            "global_batch_size_warmup_tokens": Key(
                _TOKENS, "Training tokens over which the batch grows from its start to its end; 0 begins with the end."
            ),
            "total_steps": Key(_STEPS, "Steps until the run is finished.", "at least 1"),
            "init_min_clients": Key("clients", "Members needed for an epoch to begin.", "at least min_clients, at most 256"),
            "min_clients": Key("clients", "Members needed for an epoch to go on. With fewer it ends early.", "at least 1"),
            "witness_nodes": Key(
                "clients",
                "Members elected in each round to report which results they got; 0 elects all, at most 32.",
                "at most min_clients and 32",
            ),
            "global_batch_size_start": Key(
                _SAMPLES, "Batch of a round at the beginning. It also limits the useful members.", "at least 1"
            ),
            "global_batch_size_end": Key(_SAMPLES, "Batch of a round after the warm-up.", "at least global_batch_size_start"),
            "verification_percent": Key(
                "percent", "Share of results that other members recompute and check. 0: off.", "0 to 100"
            ),
            "waiting_for_members_extra_time": Key(
                _S, "Time to wait for more members once there are init_min_clients.", "at least 1"
            ),
            "rounds_per_epoch": Key(
                "rounds",
                "Rounds after which an epoch ends, unless epoch_time ends it first; 0: only epoch_time. Not in the reference.",
            ),
            "restart_from_checkpoint": Key(
                "",
                "Without a member that has the model, go back to the stored checkpoint by itself. Not in the reference.",
            ),
            "checkpointers": Key(
                "",
                "Public keys that say where the model is stored; empty: a member is elected each epoch. Not in the reference.",
                "at most 16 different keys, 64 lower-case hex digits each",
            ),
        },
        schema.ModelConfig: {"LLM": Key("", "A causal language model, the only kind.")},
        schema.LLMConfig: {
            "max_seq_len": Key(_TOKENS, "Length of a training sequence.", "at least 1, at most the model's own limit"),
            "cold_start_warmup_steps": Key(
                _STEPS,
                "Steps of rising learning rate after an epoch that began without the members' optimizer state; 0: none.",
                "at most (epoch_time - warmup_time) / max_round_train_time",
            ),
            "architecture": Key("", "Plugin that builds the model: HfLlama, HfDeepseek, HfAuto or another."),
            "checkpoint": Key("", "Where the first model is: see Checkpoints."),
            "data_type": Key("", "For display."),
            "data_location": Key("", "Where the training data is: see Data locations."),
            "lr_schedule": Key("", "Learning rate of each step: see Learning-rate schedules, and `psyche preview-lr`."),
            "optimizer": Key("", "How gradients become updates: see Optimizers."),
        },
        schema.ProgressConfig: {
            "epoch": Key("epochs", "Number of ended epochs."),
            "step": Key("", "Next step to train.", "at least 1, at most total_steps"),
            "epoch_start_data_index": Key(_SAMPLES, "First sequence of the data that is not trained yet.", "at most 2**62"),
        },
        schema.ConstantSchedule: {
            "base_lr": Key("", "Highest learning rate.", "above 0"),
            "warmup_init_lr": Key("", "Learning rate of step 0, from which the warm-up rises."),
            "warmup_steps": Key(_STEPS, "Length of the warm-up."),
        },
        schema.DecaySchedule: {
            "final_lr": Key("", "Learning rate from step total_steps on."),
            "total_steps": Key(_STEPS, "Step at which the decay ends.", "greater than warmup_steps"),
        },
        schema.WarmupStableDecaySchedule: {
            "cosine_decay_final_lr": Key("", "Learning rate after the cosine decay.", "at most base_lr"),
            "linear_decay_final_lr": Key(
                "", "Learning rate after the linear decay, and from then on.", "at most cosine_decay_final_lr"
            ),
            "stable_steps": Key(_STEPS, "Steps at base_lr after the warm-up."),
            "cosine_decay_steps": Key(_STEPS, "Length of the cosine decay."),
            "linear_decay_steps": Key(_STEPS, "Length of the linear decay."),
        },
        schema.HubRepo: {
            "repo_id": Key("", "Repository of the Hub (owner/name), or a folder, relative to --base.", "at most 64 bytes"),
            "revision": Key("", "Commit, branch or tag of the repository.", "at most 64 bytes"),
        },
        schema.GcsRepo: {
            "bucket": Key("", "Bucket of Google Cloud Storage; s3://NAME is one of S3.", "at most 64 bytes"),
            "prefix": Key("", "Folder in the bucket.", "at most 64 bytes"),
        },
        schema.ModelConfig: {
            "LLM": Key("", "The model, its data and its optimizer."),
            "network": Key("", "How members reach each other. Not in the reference."),
            "verification": Key("", "With which scores a checked share passes. Not in the reference."),
        },
        schema.NetworkConfig: {
            "relays": Key(
                "",
                "URLs of relays for members that cannot reach each other directly; no others are used. Not in the reference.",
                "at most 8, http(s)://HOST[:PORT]",
            ),
        },
        schema.VerificationConfig: {
            "threshold": Key(
                "", "Largest score with which a share passes; `psyche bench verification` proposes one. Not in the reference."
            ),
            "median_threshold": Key(
                "",
                "A member with a larger score in most of its last five checks gets a strike. Not in the reference.",
                "at most threshold",
            ),
        },
        data_file.DataFile: {
            "dir": Key("", "Folder with token files, relative to the file."),
            "token_size": Key("", "Bytes of a token in the files."),
            "seq_len": Key(_TOKENS, "Length of a sequence.", "equal to max_seq_len of the run"),
            "shuffle_seed": Key("", "Seed of the order of sequences.", "32 numbers from 0 to 255"),
            "text": Key("", "Text to make the token files from at first use. Not in the reference."),
        },
        data_file.TextSource: {
            "package": Key("", "Installed package that contains the text."),
            "tokenizer": Key("", "Tokenizer file, relative to the file."),
            "held_out": Key("", "Fraction of the text that is kept for evaluation."),
        },
    }
)
"""By table and key. A table that extends another has the other's keys, too."""


def described(table: type[schema.Table], key: str) -> Key:
    """The description of a table's key, which may be inherited. Raises KeyError."""
    for each in table.__mro__:
        if issubclass(each, schema.Table) and key in DESCRIBED.get(each, {}):
            return DESCRIBED[each][key]
    raise KeyError(f"{table.__name__}.{key}")
