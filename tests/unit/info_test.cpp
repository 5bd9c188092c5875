#include <algorithm>
#include <guozhuang/elements.hpp>
#include <guozhuang/info.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/version.hpp>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "support/cases/error_cases.hpp"
#include "support/fakes/fake_driver.hpp"
#include "support/runner/catch.hpp"
#include "support/tensors/device_views.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

std::vector<InfoItem> info_of_two_ranks() {
    std::vector<InfoItem> items;
    run_ranks(2, [&](Session& session) {
        auto own = info(&session);
        if (session.rank() == 1) items = std::move(own);
    });
    return items;
}

std::string value_of(const std::vector<InfoItem>& items, std::string_view section,
                     std::string_view key) {
    const auto found = std::find_if(items.begin(), items.end(), [&](const InfoItem& item) {
        return item.section == section && item.key == key;
    });
    return found == items.end() ? "(none)" : found->value;
}

}  // namespace

TEST_CASE("info tells of the build, the job and every setting, section by section") {
    const auto items = info_of_two_ranks();
    CHECK(value_of(items, "build", "version") == version());
    CHECK(value_of(items, "mpi", "transport") == "in-process");
    CHECK(value_of(items, "topology", "job").starts_with("2 ranks on "));
    const base::Config defaults;
    for (const auto& row : base::config_table()) {
        if (!base::environment(std::string(row.name)))
            CHECK(value_of(items, "configuration", row.name) == row.print(defaults));
    }
    std::vector<std::string> sections;
    for (const auto& item : items) {
        if (sections.empty() || sections.back() != item.section) sections.push_back(item.section);
    }
    CHECK(sections ==
          std::vector<std::string>{"build", "mpi", "topology", "devices", "configuration"});
}

TEST_CASE("info says why CUDA is unusable") {
    for (const auto& item : info_of_two_ranks()) {
        if (item.section != "devices") continue;
        INFO(item.key << ": " << item.value);
        CHECK_FALSE(item.value.empty());
        CHECK((item.key != "cuda" || item.value.size() > std::string("unusable: ").size()));
    }
}

TEST_CASE("tensors on CUDA need CUDA, and its memory") {
    const RealCuda real;
    CHECK(problems_among(1, [](Session&, Report& report) {
              std::vector<float> numbers(2);
              const auto view = view_of(numbers, on_fake_device);
              const bool has_gpu = device::cuda_driver().value != nullptr;
              const auto code = has_gpu ? ErrorCode::invalid_argument : ErrorCode::unavailable;
              const std::string text = has_gpu ? "but is host memory" : "CUDA";
              expect_error(report, code, {"allreduce", text}, [&] { allreduce(view); });
              expect_error(report, code, {"send", text}, [&] { send(view, 0); });
              if (!has_gpu) expect_error(report, code, {"zero", text}, [&] { zero(view); });
          }) == "");
}
