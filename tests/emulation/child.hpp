#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace guozhuang::test {

using Arguments = std::vector<std::string>;

/// A function that runs in a process of its own, with its own environment, so that a test can see
/// it end or share devices with it. Its return value is the exit code.
using ChildFunction = int (*)(const Arguments& arguments);

/// Enters a function under a name; a static object of it makes the function known to every process
/// of this program.
class ChildCase {
public:
    ChildCase(const char* name, ChildFunction function);
};

/// If the command line is that of a child, runs it and returns its exit code; else -1.
int run_as_child(int argc, char** argv);

/// A child that has been started. Killed at the end, if it still runs.
class Child {
public:
    using Environment = std::map<std::string, std::string>;

    explicit Child(const std::string& name, const Environment& changes = {},
                   const std::vector<std::string>& arguments = {});
    ~Child();
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    int process() const noexcept { return process_; }
    /// Waits for the next line of its output, and returns that without the line end.
    std::string line();

    struct End {
        int exit_code = -1;  ///< -1 if a signal ended it
        int signal = 0;
        std::string output;  ///< all that line() has not taken, of stdout and stderr
    };
    End wait();

private:
    int process_ = -1;
    int output_ = -1;
};

/// The child's end, from start to end.
Child::End end_of(const std::string& name, const Child::Environment& changes = {},
                  const std::vector<std::string>& arguments = {});

/// Whether the child was aborted by the rule, which it named.
bool is_broken_rule(const Child::End& end, std::string_view rule);

}  // namespace guozhuang::test
