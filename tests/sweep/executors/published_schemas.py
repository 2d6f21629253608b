"""Compare a manifest with the schemas that SkyPilot and JobSet publish; run in an environment that has them.

python published_schemas.py FOLDER
"""

import pathlib
import sys

import jsonschema
import sky
import yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet
from sky.utils import schemas

folder = pathlib.Path(sys.argv[1])
task = yaml.safe_load((folder / "skypilot.yaml").read_text())
jsonschema.validate(task, schemas.get_task_schema())
jsonschema.validate(task["resources"], schemas.get_resources_schema())
sky.Task.from_yaml(str(folder / "skypilot.yaml"))
jobset = yaml.safe_load((folder / "jobset.yaml").read_text())
assert JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset, "a field that JobSet doesn't know"
