"""Find, load and explain plugins.

- `registry` finds entry points and loads what is asked for; a registry is an object, there is no global state
- `survey` loads many in another process, for commands that look at all of them
- `child_process` runs foreign code in a process of its own, and waits for that process only
- `records` is what is known of an entry point; `directory` is which plugins this project knows, and what installs them
- `loading` imports a module, compares API versions and calls its hook
- `registration_checks` says what is wrong with a registration, at once and in one sentence
- `settings` validates a plugin's own table, and describes its keys
- `model_stores` opens places of models by URL, those of plugins among them, and checks what a plugin's store gives
- `advice` says what a plugin should have and lacks, although it can be used
- `projects` makes the project of a new plugin

Which plugins are switched off is in `psyche_core.plugin_switches`.
"""

from psyche_core.plugins.loading import PluginApiWarning
from psyche_core.plugins.records import PluginRecord, Records, Status
from psyche_core.plugins.registry import PluginRegistry, discover_and_tell
from psyche_core.plugins.settings import check_run_file_plugins, described_settings, validate_settings

__all__ = [
    "PluginApiWarning",
    "PluginRecord",
    "PluginRegistry",
    "Records",
    "Status",
    "check_run_file_plugins",
    "described_settings",
    "discover_and_tell",
    "validate_settings",
]
