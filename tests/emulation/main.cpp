#include "emulation/child.hpp"
#include "support/runner/runner.hpp"

int main(int argc, char** argv) {
    using namespace guozhuang::test;
    if (const int code = run_as_child(argc, argv); code >= 0) return code;
    if (const int error = read_command_line(argc, argv); error != 0) return error;
    become_rank(0, chosen_seed());
    return run_cases();
}
