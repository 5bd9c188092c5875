#include "support/emulated_cuda/emulated_cuda.hpp"
#include "support/emulated_cuda/protection.hpp"

const char* emulated_cuda_rules() {
    using namespace guozhuang::emulated_cuda;
    if (keys_are_enforced())
        return "in force: no CUDA call from a host function\n"
               "in force: no use of a destroyed stream or event\n"
               "in force: no sharing of pool or managed memory\n"
               "in force: no host thread touches device memory\n"
               "in force: no kernel touches memory of a device without peer access\n";
    return "in force: no CUDA call from a host function\n"
           "in force: no use of a destroyed stream or event\n"
           "in force: no sharing of pool or managed memory\n"
           "not in force: no host thread touches device memory (no protection keys here)\n"
           "not in force: no kernel touches memory of a device without peer access (no protection "
           "keys here)\n";
}
