// Lets all test cases of a program go by NCCL, also those that know nothing of it.

#define CATCH_CONFIG_EXTERNAL_INTERFACES  // NOLINT: of Catch2 2, for listeners

#include "emulation/ranks/nccl_in_use.hpp"
#include "support/runner/catch.hpp"

namespace {

#if GUOZHUANG_CATCH_VERSION >= 3
using ListenerBase = Catch::EventListenerBase;
#else
using ListenerBase = Catch::TestEventListenerBase;
#endif

class NcclListener : public ListenerBase {
public:
    using ListenerBase::ListenerBase;

    void testRunStarting(const Catch::TestRunInfo& info) override {
        ListenerBase::testRunStarting(info);
        guozhuang::test::path_in_use();
    }
};

}  // namespace

CATCH_REGISTER_LISTENER(NcclListener)
