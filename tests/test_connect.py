"""Sites' statistics, their files, and connections made of them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

import ratemesh
from ratemesh.connection.connection import Connection, connect
from ratemesh.connection.files import KEY, SMALL, pack_site, read_site, write_site
from ratemesh.connection.site import SiteStatistics
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.messages.codecs import CODECS
from toy_sites_apart import CLASSES, Law, site


def test_encoders_that_never_met_understand_each_other() -> None:
    law = Law()
    mesh = ratemesh.connect([site(law, 0), site(law, 1), site(law, 2, d=16)])
    assert isinstance(mesh, ratemesh.Connection)
    assert [tuple(W.shape) for W in mesh.maps] == [(16, 12), (16, 12), (16, 16)]
    X, y = law.samples(200)
    seen = [mesh.encode(i, law.encoder(i, 16 if i == 2 else None)(X)) for i in range(3)]
    torch.testing.assert_close(seen[0].norm(dim=1), torch.ones(200))
    for i in range(3):
        assert (mesh.predict(i, law.encoder(i, 16 if i == 2 else None)(X)) == y).mean() > 0.95
    # Each site has samples of its own, so statistics agree up to sampling only: 400 samples a site.
    assert float((seen[0] * seen[1]).sum(1).mean()) > 0.97
    assert float((seen[0] * seen[2]).sum(1).mean()) > 0.97
    judged = mesh.predict("site-0", law.encoder(0)(X), judge="site-2")
    assert (judged == y).mean() > 0.95


def test_offsets_and_scales_of_an_encoder_do_not_matter() -> None:
    law = Law()
    X, y = law.samples(300)
    plain, moved = (SiteStatistics.of(Z, y, X=X) for Z in (X @ law.common, 7 * (X @ law.common + 3)))
    torch.testing.assert_close(plain.stats.V, moved.stats.V, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        plain.centred(X @ law.common), moved.centred(7 * (X @ law.common + 3)), atol=1e-3, rtol=0
    )


def test_the_offset_does_not_depend_on_how_often_classes_occur() -> None:
    Z = torch.tensor([[0.0, 1], [0, 3], [4, 0], [8, 0]]).repeat_interleave(torch.tensor([1, 1, 5, 5]), 0)
    found = SiteStatistics.of(Z, np.array(["a"] * 2 + ["b"] * 10))
    assert found.offset.tolist() == [3.0, 1.0]


@pytest.mark.parametrize("codec", [CODECS["packed"](name="packed"), CODECS["half"](name="half"), SMALL], ids=str)
def test_files_come_back_as_they_were_told(tmp_path: Path, codec) -> None:
    told = site(Law(), 0)
    size = write_site(tmp_path / "site.safetensors", told, codec)
    back = read_site(tmp_path / "site.safetensors")
    assert size == (tmp_path / "site.safetensors").stat().st_size
    assert (back.name, back.classes, back.sketch) == (told.name, told.classes, told.sketch)
    assert torch.equal(back.offset, told.offset)
    assert torch.equal(back.stats.m, told.stats.m)
    assert back.stats.sketch is not None
    assert told.stats.sketch is not None
    torch.testing.assert_close(back.stats.sketch.C, told.stats.sketch.C, atol=2e-3, rtol=0)
    assert torch.equal(back.stats.V, told.stats.V) or codec.name != "packed"
    # A file that is passed on is the file that came: lossy numbers are not coded again.
    assert pack_site(back) == (tmp_path / "site.safetensors").read_bytes()


def test_ten_classes_fit_in_25_kilobytes() -> None:
    draw = torch.Generator().manual_seed(0)
    X = torch.rand(200, 1, 8, 8, generator=draw)
    sent = SiteStatistics.of(
        torch.randn(200, 128, generator=draw), np.arange(200) % 10, X=X, sketch={"name": "auto", "p": 12}
    )
    assert len(pack_site(sent, SMALL)) <= 25_000


def test_small_statistics_connect_nearly_as_well(tmp_path: Path) -> None:
    law = Law()
    for i in range(2):
        write_site(tmp_path / f"{i}.safetensors", site(law, i, sketch={"name": "auto", "p": 12}), SMALL)
    mesh = connect([read_site(tmp_path / f"{i}.safetensors") for i in range(2)])
    X, y = law.samples(200)
    assert (mesh.predict(0, law.encoder(0)(X), judge=1) == y).mean() > 0.95


def test_a_connection_is_kept_whole(tmp_path: Path) -> None:
    law = Law()
    write_site(tmp_path / "small.safetensors", site(law, 1), SMALL)
    mesh = connect([site(law, 0), read_site(tmp_path / "small.safetensors")])
    mesh.save(tmp_path / "mesh", summary={"acc_own": 1.0})
    again = Connection.load(tmp_path / "mesh")
    Z = law.encoder(1)(law.samples(50)[0])
    torch.testing.assert_close(again.encode(1, Z), mesh.encode(1, Z))
    torch.testing.assert_close(again.stats.V, mesh.stats.V)
    assert again.classes == mesh.classes
    classifier = load((tmp_path / "mesh" / "classifier.safetensors").read_bytes())
    torch.testing.assert_close(classifier["V"], mesh.stats.V)


def test_a_map_that_is_none_is_refused(tmp_path: Path) -> None:
    law = Law()
    connect([site(law, 0), site(law, 1)]).save(tmp_path)
    tensors = load((tmp_path / "maps.safetensors").read_bytes())
    (tmp_path / "maps.safetensors").write_bytes(save({**tensors, "map.1": 2 * tensors["map.1"]}))
    with pytest.raises(InputError, match="must hold a map of 'site-1'"):
        Connection.load(tmp_path)


def test_who_joins_turns_nobody_and_brings_a_class() -> None:
    law = Law()
    mesh = connect([site(law, i, classes=(0, 1, 2)) for i in range(2)])
    joined = mesh.join(site(law, 2, d=16, classes=(0, 1, 2, 3)))
    assert joined.classes == (*mesh.classes, "fox")
    X, y = law.samples(200)
    for i in range(2):
        Z = law.encoder(i)(X)
        torch.testing.assert_close(joined.encode(i, Z)[:, :12], mesh.encode(i, Z))
        assert not joined.encode(i, Z)[:, 12:].any()
        # Statistics of the new class came from the newcomer alone, and serve those that never had it.
        assert (joined.predict(i, Z) == y).mean() > 0.95
    with pytest.raises(InputError, match="must share a class with the connection"):
        mesh.join(site(law, 3, classes=(3,)))


def test_samples_decide_how_a_class_is_turned_inside() -> None:
    """Classes that are spheres about 0 leave second moments with nothing to say; sketch moments tell."""
    draw = torch.Generator().manual_seed(0)
    X = torch.randn(2, 4000, 6, generator=draw)
    y = np.arange(4000) % 2
    turn = torch.linalg.qr(torch.randn(6, 6, generator=draw))[0]
    Z = [X[0], X[1] @ turn]
    use = {"name": "fourier", "p": 32, "scale": 2.0}
    cosines = []
    for samples in (X, [None, None]):
        mesh = connect([SiteStatistics.of(Z[i], y, X=samples[i], name=str(i), sketch=use) for i in range(2)])
        cosines.append(float((mesh.encode(0, X[0]) * mesh.encode(1, X[0] @ turn)).sum(1).mean()))
    assert cosines[0] > 0.95
    assert cosines[1] < 0.5


def test_sketches_fit_what_samples_are() -> None:
    draw = torch.Generator().manual_seed(0)
    Z, y = torch.randn(20, 4, generator=draw), np.arange(20) % 2
    texts = ["one", "two two", "three", "four four"] * 5
    images, vectors = torch.rand(20, 9, 9, generator=draw), torch.rand(20, 5, generator=draw)
    photos = torch.rand(20, 9, 9, 3, generator=draw)
    cases = ((texts, ()), (np.array(texts), ()), (images, (1, 9, 9)), (photos, (3, 9, 9)), (vectors, (5,)))
    for X, shape in cases:
        name = ("ngrams", "fourier", "", "convolutions")[len(shape)]
        found = SiteStatistics.of(Z, y, X=X).sketch
        assert found is not None
        assert (found.spec.name, found.shape) == (name, shape)
    with pytest.raises(InputError, match="does not fit"):
        SiteStatistics.of(Z, y, X=texts, sketch="fourier")
    with pytest.raises(InputError, match="one a feature, 20; got 4"):
        SiteStatistics.of(Z, y, X=texts[:4])


def test_a_constant_sketch_is_told_and_left_out() -> None:
    Z = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    with pytest.warns(RatemeshWarning, match="the same for all samples"):
        found = SiteStatistics.of(Z, np.arange(20) % 2, X=np.zeros((20, 6), np.float32))
    assert found.sketch is None
    assert found.stats.sketch is None


def test_too_narrow_a_sketch_is_told() -> None:
    draw = torch.Generator().manual_seed(0)
    Z, X = torch.randn(400, 16, generator=draw), torch.rand(400, 5, generator=draw)
    with pytest.warns(RatemeshWarning, match=r"tie down \d directions"):
        SiteStatistics.of(Z, np.arange(400) % 2, X=X, sketch={"name": "fourier", "p": 2})


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"sketch": {"name": "fourier", "p": 8}}, "must use one sketch; 'site-0' has fourier"),
        ({"seed": 5}, "seed 5"),
        ({"classes": (2, 3)}, "'site-1' share none with 'site-0'"),
    ],
)
def test_sites_that_do_not_fit_are_named(how, words: str) -> None:
    law = Law()
    with pytest.raises(InputError, match=words):
        connect([site(law, 0, classes=(0, 1)), site(law, 1, **{"classes": (0, 1), **how})])


def test_names_must_differ_and_sites_be_known() -> None:
    law = Law()
    one = site(law, 0)
    with pytest.raises(InputError, match="names of their own"):
        connect([one, one])
    mesh = connect([one, site(law, 1)])
    with pytest.raises(InputError, match="Did you mean 'site-1'"):
        mesh.encode("sites-1", torch.zeros(1, 12))
    with pytest.raises(InputError, match="must be one of the connection's; got 7"):
        mesh.encode(7, torch.zeros(1, 12))
    with pytest.raises(InputError, match=r"must have shape \(m, 12\)"):
        mesh.encode(0, torch.zeros(1, 5))


def test_a_site_without_sketch_moments_is_told_and_connected() -> None:
    law = Law()
    with pytest.warns(RatemeshWarning, match="site-1 sent no sketch moments"):
        mesh = connect([site(law, 0), site(law, 1, sketch=None), site(law, 2)])
    X, y = law.samples(200)
    assert (mesh.predict(1, law.encoder(1)(X), judge=0) == y).mean() > 0.9


@pytest.mark.parametrize(
    ("Z", "y", "words"),
    [
        (torch.full((4, 3), torch.nan), [0, 0, 1, 1], "row 0 is not"),
        (torch.eye(4), [0, 0, 1, 2], "class '1' has 1"),
        (torch.eye(4), [0, 0, 1], r"a label for every feature, shape \(4,\)"),
        (torch.ones(4, 3), [0, 0, 1, 1], "must differ from their mean; row 0"),
        (torch.ones(4, 3, dtype=torch.int64), [0, 0, 1, 1], "must be floats"),
    ],
)
def test_features_that_say_nothing_are_refused(Z, y, words: str) -> None:
    with pytest.raises(InputError, match=words):
        SiteStatistics.of(Z, y)


def tampered(content: bytes, tensors=None, **header) -> bytes:
    """Return a site's file with other tensors or another header."""
    length = int.from_bytes(content[:8], "little")
    about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][KEY]) | header
    return save({**load(content), **(tensors or {})}, metadata={KEY: json.dumps(about)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format"),
        ({"d": 10**6}, "d: Input should be less than"),
        ({"d": 13}, "offset of 13"),
        ({"classes": ["a", "a", "b", "c"]}, "names of their own"),
        ({"classes": ["a", "b"]}, "must have shape"),
        ({"codec": {"name": "os:system"}}, "codec of .* must be a known one"),
        ({"codec": {"name": "delta"}}, "codec of .* must be a known one"),
        ({"sketch": {"spec": {"name": "os:system"}, "seed": 0, "shape": [4]}}, "sketch of .* must be a known one"),
        ({"sketch": None}, "exactly if its header names a sketch"),
        ({"tensors": {"mu": torch.full((4, 12), 2.0)}}, "must not be longer"),
        ({"tensors": {"V": torch.full((4, 78), torch.nan)}}, "not finite"),
        ({"tensors": {"C": torch.full((4, 12, 24), 255, dtype=torch.uint8)}}, "sketch moments must not exceed"),
        ({"tensors": {"offset": torch.full((12,), torch.inf)}}, "offset of .* must be finite"),
        ({"tensors": {"m": torch.zeros(4)}}, "."),
    ],
)
def test_a_strangers_file_is_checked(tmp_path: Path, change, words: str) -> None:
    path = tmp_path / "stranger.safetensors"
    path.write_bytes(tampered(pack_site(site(Law(), 0)), **change))
    with pytest.raises(InputError, match=words):
        read_site(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"nothing of the kind", save({"V": torch.zeros(1)})):
        (tmp_path / "x.safetensors").write_bytes(content)
        with pytest.raises(InputError, match=r"x\.safetensors"):
            read_site(tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="must carry whole statistics"):
        pack_site(replace(site(Law(), 0)), CODECS["delta"](name="delta"))


def test_labels_are_matched_by_name_not_by_place() -> None:
    law = Law()
    mesh = connect([site(law, 0, classes=(3, 1)), site(law, 1, classes=(1, 2, 3))])
    assert set(mesh.classes) == {"dog", "elk", "fox"}
    X, y = law.samples(100, (1, 3))
    assert (mesh.predict(0, law.encoder(0)(X), judge=1) == y).mean() > 0.9
    assert set(mesh.predict(0, law.encoder(0)(X), judge=0)) <= set(CLASSES[[1, 3]])
