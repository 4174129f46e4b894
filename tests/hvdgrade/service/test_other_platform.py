"""The platform side of LTI as other people wrote it: the package lti1p3platform takes our scores."""

import json
import urllib.parse

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from local_server import serving

from hvdgrade.service.lti import MEDIA_TYPE, Keys, Scores, Target

platform = pytest.importorskip(
    "lti1p3platform.ltiplatform", reason="needs lti1p3platform: run `make setup`"
)
connector = pytest.importorskip("lti1p3platform.service_connector")
registration = pytest.importorskip("lti1p3platform.registration")
requests = pytest.importorskip("lti1p3platform.request")
exceptions = pytest.importorskip("lti1p3platform.exceptions")
score = pytest.importorskip("lti1p3platform.score")


class Configuration(platform.LTI1P3PlatformConfAbstract):
    def init_platform_config(self, keys):
        secret = rsa.generate_private_key(65537, 2048)
        text = {
            "private": secret.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            "public": secret.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            ),
        }
        made = registration.Registration().set_iss("https://lms.example").set_client_id("client-1")
        made.set_platform_private_key(text["private"].decode())
        made.set_platform_public_key(text["public"].decode())
        self._registration = made.set_tool_key_set(keys)

    def get_registration_by_params(self, **_):
        return self._registration


class Request(requests.Request):
    def build_metadata(self, request):
        return {
            "method": request.method,
            "headers": request.headers,
            "content_type": request.headers["Content-Type"],
            "json": json.loads(request.body),
        }


class Service(connector.AssignmentsGradesService):
    def update_score(self, line_item_id, sent):
        self.taken = (line_item_id, sent)
        return score.UpdateScoreStatus.SUCCESS

    def unused(self, *_, **__):
        raise NotImplementedError

    find_lineitems = find_lineitem = create_lineitem = update_lineitem = unused
    delete_lineitem = get_results = unused


@pytest.mark.slow
def test_takes_a_score_and_refuses_a_strange_key(tmp_path):
    keys = Keys([tmp_path / "lti.pem"])
    configuration = Configuration(keys=keys.jwks())
    taken = []

    def answer(request, _):
        if request.path == "/token":
            form = dict(urllib.parse.parse_qsl(request.body.decode()))
            try:
                document = configuration.get_access_token(form)
            except Exception as error:  # its own, those of PyJWT and of jwcrypto
                return 400, {}, type(error).__name__.encode()
            return 200, {}, json.dumps(document).encode()
        service = Service(
            Request(request), configuration, "https://lms/items", "https://lms/items/7"
        )
        given = service.handle_resp(service.handle_update_score, line_item_id="7")
        taken.append((request.path, request.headers["Content-Type"], service.taken))
        return given.code, {}, b""

    with serving(answer) as url:
        target = Target(f"{url}/items/7", "client-1", f"{url}/token", f"{url}/token")
        sent = {"userId": "u", "scoreGiven": 7.5, "scoreMaximum": 10}
        assert Scores(keys).send(target, sent).status == 200
        assert taken == [("/items/7/scores", MEDIA_TYPE, ("7", sent))]
        assert Scores(Keys([tmp_path / "strange.pem"])).send(target, sent).status == 400
        assert len(taken) == 1
