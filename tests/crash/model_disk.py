"""The rig lives in `headrace.verify`, so that users can run it; tests find it here, too."""

from headrace.verify.model_disk import ROOT, Image, ModelDisk

__all__ = ["ROOT", "Image", "ModelDisk"]
