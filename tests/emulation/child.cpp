#include "emulation/child.hpp"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <spawn.h>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace guozhuang::test {
namespace {

constexpr std::string_view child_option = "--child";

std::map<std::string, ChildFunction>& functions() {
    static std::map<std::string, ChildFunction> all;
    return all;
}

std::vector<std::string> environment_with(Child::Environment changes) {
    for (char** each = environ; *each; ++each) {
        const std::string setting = *each;
        const auto equals = setting.find('=');
        changes.try_emplace(setting.substr(0, equals), setting.substr(equals + 1));
    }
    std::vector<std::string> all;
    for (const auto& [name, value] : changes)
        all.push_back(std::string(name).append("=").append(value));
    return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (auto& each : texts) pointers.push_back(each.data());
    pointers.push_back(nullptr);
    return pointers;
}

}  // namespace

ChildCase::ChildCase(const char* name, ChildFunction function) {
    functions()[name] = function;
}

int run_as_child(int argc, char** argv) {
    if (argc < 3 || argv[1] != child_option) return -1;
    const rlimit no_core{};
    setrlimit(RLIMIT_CORE, &no_core);
    return functions().at(argv[2])({argv + 3, argv + argc});
}

Child::Child(const std::string& name, const Environment& changes,
             const std::vector<std::string>& arguments) {
    std::vector<std::string> line{"/proc/self/exe", std::string(child_option), name};
    line.insert(line.end(), arguments.begin(), arguments.end());
    auto environment = environment_with(changes);
    int pipe[2];
    if (pipe2(pipe, O_CLOEXEC) != 0) throw std::runtime_error("no pipe for a child");
    output_ = pipe[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
    const int error = posix_spawn(&process_, "/proc/self/exe", &actions, nullptr,
                                  pointers_to(line).data(), pointers_to(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    ::close(pipe[1]);
    if (error != 0) throw std::runtime_error("cannot start a child");
}

Child::~Child() {
    if (process_ > 0) {
        ::kill(process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
    }
    ::close(output_);
}

std::string Child::line() {
    std::string text;
    char next = 0;
    while (::read(output_, &next, 1) == 1 && next != '\n') text += next;
    return text;
}

Child::End Child::wait() {
    End end;
    char next = 0;
    while (::read(output_, &next, 1) == 1) end.output += next;
    int status = 0;
    ::waitpid(std::exchange(process_, -1), &status, 0);
    if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
    return end;
}

Child::End end_of(const std::string& name, const Child::Environment& changes,
                  const std::vector<std::string>& arguments) {
    return Child(name, changes, arguments).wait();
}

bool is_broken_rule(const Child::End& end, std::string_view rule) {
    return end.signal == SIGABRT &&
           end.output.find("emulated CUDA: rule: " + std::string(rule)) != std::string::npos;
}

}  // namespace guozhuang::test
