"""The page of the cost, with numbers that are computed here by hand."""

import re

from service_site import RESULTS


def graded(site, seconds: float, devices: list[str]) -> None:
    site.submit()
    resources = RESULTS["pass"]["resources"] | {"grading_wall": seconds, "devices": devices}
    assert site.result(site.claim().json(), "pass", resources=resources).status_code == 200


def page_of(site, who: str = "ines", **query) -> str:
    answer = site.browser(who).get("/i/cifar/cost", params=query)
    assert answer.status_code == 200
    return answer.text


def rows(page: str) -> dict[str, list[str]]:
    found = re.findall(r"<tr><td>(.*?)</td>(.*?)</tr>", page)
    return {what: re.findall(r'"number">(.*?)</td>', cells) for what, cells in found}


def test_hours_so_far_and_a_forecast_for_the_class(site):
    assert "There is no forecast" in page_of(site)
    assert rows(page_of(site)) == {"so far": ["0", "0.0", "0.0", "–"]}
    gpus = ["GPU-a", "GPU-b"]
    for seconds, devices in ((1800, gpus), (900, ["GPU-a", "GPU-a"]), (7200, ["processor"] * 2)):
        graded(site, seconds, devices)
    # 9900 s x 2 ranks; 1800 s x 2 GPUs + 900 s x 1 GPU
    page = page_of(site)
    assert rows(page)["so far"] == ["3", "5.5", "1.2", "–"]
    # Two learners x 1.5 attempts so far = 3 gradings x the median, 1800 s on one GPU.
    assert rows(page)["forecast, whole class"] == ["3", "3.0", "1.5", "–"]
    site.change(attempts=5)
    page = page_of(site, core_price="0.5", gpu_price="3")
    assert rows(page)["so far"] == ["3", "5.5", "1.2", "6.50"]
    # 2 x 5 gradings; one slot is online, and seven gradings of half an hour are left.
    assert rows(page)["forecast, whole class"] == ["10", "10.0", "5.0", "20.00"]
    assert "the rest takes 3.5 hours" in page
    assert rows(page_of(site, attempts="2"))["forecast, whole class"][0] == "4"


def test_a_price_that_is_no_number_is_refused_and_learners_see_nothing(site):
    answer = site.browser("ines").get("/i/cifar/cost", params={"core_price": "cheap"})
    assert answer.status_code == 400 and "Core_price must be a number from 0" in answer.text
    assert site.browser("ada").get("/i/cifar/cost").status_code == 404
    assert "Price of a core-hour" in page_of(site, "tom")
