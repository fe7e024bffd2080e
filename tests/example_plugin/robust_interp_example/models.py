"""A family of two small convolutional networks, registered with timm."""

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

default_cfgs = generate_default_cfgs(
    {
        f"example_net{width}": {
            "num_classes": 4,
            "input_size": (1, 8, 8),
            "mean": (0.2253,),
            "std": (0.0895,),
            "first_conv": "stem",
            "classifier": "head",
        }
        for width in (8, 16)
    }
)


class ExampleNet(nn.Module):
    """Two 3x3 convolutions of `width` channels, global average pooling and a linear classifier."""

    def __init__(self, width: int, num_classes: int = 4, in_chans: int = 1) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.num_features = width
        self.stem = nn.Conv2d(in_chans, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images):
        features = self.conv(self.norm(self.stem(images)).relu()).relu()
        return self.head(features.mean(dim=(2, 3)))


def _net(name: str, pretrained: bool, **arguments) -> ExampleNet:
    return build_model_with_cfg(ExampleNet, name, pretrained, **arguments)


@register_model
def example_net8(pretrained: bool = False, **arguments) -> ExampleNet:
    return _net("example_net8", pretrained, **{"width": 8} | arguments)


@register_model
def example_net16(pretrained: bool = False, **arguments) -> ExampleNet:
    return _net("example_net16", pretrained, **{"width": 16} | arguments)
