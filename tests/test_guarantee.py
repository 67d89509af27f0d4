"""What a `Guarantee` accepts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dpfuse.guarantee import Guarantee
from support.designs import make_guarantee


class TestGuarantee:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"order": 1.0}, "order must be > 1, got 1.0; 2 is a usual choice"),
            ({"order": math.nan}, "order must be finite and > 0, got nan"),
            ({"order": "2"}, "order must be a number, got str"),
            ({"order": True}, "order must be a number, got bool"),
            ({"budget": 0.0}, "budget must be finite and > 0, got 0.0; train with guarantee=None"),
            ({"budget": -1}, "budget must be finite and > 0, got -1"),
            ({"budget": math.inf}, "budget must be finite and > 0, got inf"),
            ({"budget": 2.0**22}, r"budget must be at most 2\^20 \* order, got 4194304.0"),
            ({"adjacency": "add-one"}, "adjacency must be one of replace-one, remove-one, got 'add-one'"),
            ({"adjacency": None}, "adjacency must be one of replace-one, remove-one, got None"),
            ({"accounting": "both"}, "accounting must be one of total, individual, got 'both'"),
        ],
    )
    def test_a_guarantee_with_a_wrong_field_is_refused(self, changes, message):
        fields = {"order": 2.0, "budget": 1.5, "adjacency": "remove-one"} | changes
        with pytest.raises((TypeError, ValueError), match=message):
            Guarantee(**fields)

    def test_adjacency_has_no_default(self):
        with pytest.raises(TypeError, match="adjacency"):
            Guarantee(order=2.0, budget=1.5)

    def test_radius_and_dictionary_follow_from_the_fields(self):
        guarantee = make_guarantee(budget=1.5)
        assert guarantee.squared_radius == Fraction(3, 2)
        assert Guarantee(**guarantee.to_dict()) == guarantee

    @pytest.mark.parametrize("number", [np.float64, np.float32, int])
    def test_any_type_of_number_gives_the_same_guarantee(self, number):
        assert repr(make_guarantee(budget=number(1), order=number(2))) == repr(make_guarantee(budget=1.0, order=2.0))
        assert make_guarantee(budget=number(1), order=number(2)).squared_radius == 1
