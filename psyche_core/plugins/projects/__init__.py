"""Makes the project of a new plugin from the templates in this folder, and brings an older project up to date.

- `kinds` is what differs between kinds of plugins; `generating` fills the templates in
- `record` is the file in a project that says what it was made from, and which files were generated
- `making` writes a new project: `psyche plugins new`
- `planning` says what an update does with each file, `updating` does it: `psyche plugins update`
- `writing` puts a file into a project, whole or not at all

copier, which does the same, brings Jinja and a dozen other packages into every installation, and its update needs the templates
as a git repository with tags; ours travel in the wheel. What changes most between releases is not a text that authors own but
the contract, and that is in the conformance classes, which they import.
"""

from psyche_core.plugins.projects.kinds import KINDS
from psyche_core.plugins.projects.making import make_project
from psyche_core.plugins.projects.planning import Change, Plan, plan_update
from psyche_core.plugins.projects.updating import carry_out

__all__ = ["KINDS", "Change", "Plan", "carry_out", "make_project", "plan_update"]
