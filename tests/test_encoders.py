"""Encoders: on the unit sphere, turned by their gauge, and drawn from their seed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ratemesh.encoders import ENCODERS, Encoder, EncoderSpec
from ratemesh.encoders.networks import Conv4, Mlp
from ratemesh.errors import InputError
from ratemesh.specs import resolve

SMALL = {"conv4": Conv4(width=0.1), "mlp": Mlp(hidden=(12,))}
SHAPE = (1, 8, 8)


def samples(m=6, shape=SHAPE, seed=0):
    return torch.randn(m, *shape, generator=torch.Generator().manual_seed(seed))


def weights(encoder):
    return torch.cat([p.detach().flatten() for p in encoder.parameters()])


@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.parametrize("training", [True, False])
def test_outputs_lie_on_the_unit_sphere(name, training):
    Z = SMALL[name].build(SHAPE, 10, 0).train(training)(samples())
    assert Z.shape == (6, 10)
    torch.testing.assert_close(Z.norm(dim=1), torch.ones(6), rtol=0, atol=1e-6)
    assert torch.linalg.matrix_rank(Z.detach()) > 1


@given(st.integers(0, 1000), st.sampled_from(sorted(SMALL)))
def test_a_turn_rotates_the_features(orthogonal, seed, name):
    encoder, X = SMALL[name].build(SHAPE, 10, seed).eval(), samples(seed=seed)
    Q, R = orthogonal(10, seed).float(), orthogonal(10, seed + 1).float()
    before, untouched = encoder(X), weights(encoder)
    encoder.turn(Q)
    torch.testing.assert_close(encoder(X), before @ Q.T, rtol=0, atol=1e-5)
    encoder.turn(R)
    torch.testing.assert_close(encoder(X), before @ (R @ Q).T, rtol=0, atol=1e-5)
    assert torch.equal(weights(encoder), untouched)


def test_rounding_does_not_pile_up_over_many_turns(orthogonal):
    """Each turn is off by one part in a thousand; without care the gauge would grow by a fifth."""
    encoder = SMALL["mlp"].build(SHAPE, 10, 0).eval()
    for i in range(200):
        encoder.turn(1.001 * orthogonal(10, i))
    torch.testing.assert_close(encoder.gauge @ encoder.gauge.T, torch.eye(10), rtol=0, atol=2e-6)
    assert encoder.gauge.dtype == torch.float32  # the turns were double


def test_the_gauge_is_saved_and_not_trained(orthogonal):
    encoder, other = (SMALL["mlp"].build(SHAPE, 10, seed) for seed in (0, 1))
    encoder.turn(orthogonal(10, 3))
    assert "gauge" not in dict(encoder.named_parameters())
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other.eval()(samples()), encoder.eval()(samples()))


def test_the_gradient_passes_the_gauge(orthogonal):
    """d/dθ of c·f(x) after a turn by Q is d/dθ of (Qᵀc)·f(x) before it."""
    encoder, Q = SMALL["mlp"].build(SHAPE, 10, 0).eval(), orthogonal(10, 2).float()
    c = samples(1, (10,))[0]
    last = list(encoder.parameters())[-1]
    (before,) = torch.autograd.grad((encoder(samples()) @ (Q.T @ c)).sum(), last)
    encoder.turn(Q)
    (after,) = torch.autograd.grad((encoder(samples()) @ c).sum(), last)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert before.abs().max() > 1e-3


@pytest.mark.parametrize("name", sorted(SMALL))
def test_weights_come_from_seed_and_names(name):
    def build(seed, *names):
        return weights(SMALL[name].build(SHAPE, 10, seed, *names))

    assert torch.equal(build(0, "node", 1), build(0, "node", 1))
    assert not torch.equal(build(0, "node", 1), build(0, "node", 2))
    assert not torch.equal(build(0, "node", 1), build(1, "node", 1))


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    SMALL["mlp"].build(SHAPE, 10, 0)
    assert torch.equal(torch.rand(1), expected)


def test_conv4_at_full_width_has_the_papers_number_of_weights():
    encoder = Conv4().build((1, 32, 32), 128, 0)
    *before, last = encoder.network
    assert isinstance(last, nn.Linear)
    assert sum(p.numel() for layer in before for p in layer.parameters()) == 1_181_440
    assert (last.in_features, last.out_features) == (128, 128)
    kernels = [layer for layer in before if isinstance(layer, nn.Conv2d)]
    assert [(c.out_channels, c.kernel_size, c.stride) for c in kernels] == [
        (64, (4, 4), (2, 2)),
        (128, (4, 4), (2, 2)),
        (256, (4, 4), (2, 2)),
        (128, (4, 4), (1, 1)),
    ]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (2, 9, 40)])
def test_conv4_takes_any_image_from_eight_up(shape):
    Z = Conv4(width=0.05).build(shape, 5, 0)(samples(3, shape))
    torch.testing.assert_close(Z.norm(dim=1), torch.ones(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 7, 8), (1, 8, 7), (64,), (8, 8), (1, 1, 8, 8)])
def test_conv4_refuses_what_is_too_small_or_no_image(shape):
    with pytest.raises(InputError, match=r"'conv4' must be given images of at least 8×8; got .*\(.*\)\. Use 'mlp'"):
        Conv4().build(shape, 10, 0)


def test_a_narrow_conv4_does_not_bound_the_rank():
    """The channels before the last layer never fall below d, whatever the width."""
    last = Conv4(width=0.01).build((1, 32, 32), 40, 0).network[-1]
    assert last.in_features == 40


def test_mlp_has_the_layers_asked_for():
    encoder = Mlp(hidden=(7, 5)).build((2, 3), 4, 0)
    linear = [layer for layer in encoder.network if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(6, 7), (7, 5), (5, 4)]
    assert sum(isinstance(layer, nn.BatchNorm1d) for layer in encoder.network) == 2
    assert encoder(torch.ones(3, 2, 3) * torch.arange(3.0)[:, None, None]).shape == (3, 4)


def test_mlp_without_hidden_layers_is_linear():
    encoder = Mlp(hidden=()).build((3,), 2, 0)
    layer = encoder.network[-1]
    X = samples(5, (3,))
    expected = X @ layer.weight.T + layer.bias
    torch.testing.assert_close(encoder(X), expected / expected.norm(dim=1, keepdim=True))


def test_width_never_reaches_zero():
    assert (Conv4(width=0.5).scaled(64), Conv4(width=0.001).scaled(64), Conv4(width=0.25).scaled(10)) == (32, 1, 2)


def test_a_network_of_ones_own_can_be_wrapped():
    encoder = Encoder(nn.Identity(), 3)
    assert torch.equal(encoder(torch.tensor([[0.0, 3.0, 4.0]])), torch.tensor([[0.0, 0.6, 0.8]]))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("conv5", r"encoder\.name must be a known encoder; got 'conv5'\. Did you mean 'conv4'\? Known: conv4, mlp"),
        ({"width": 0.5}, r"encoder\.name must name an encoder; got None\. Known: conv4, mlp"),
        ({"name": "conv4", "width": 0}, r"encoder\.width: .*greater than 0; got 0"),
        ({"name": "mlp", "hiden": [3]}, r"encoder\.hiden is not a setting\. Did you mean 'hidden'\?"),
    ],
)
def test_bad_settings_name_key_value_and_remedy(table, message):
    with pytest.raises(InputError, match=message):
        resolve(table, ENCODERS, EncoderSpec, "encoder")
