#pragma once

#include <cstdlib>
#include <guozhuang/log.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/config.hpp"

/// The process around a test. While no other thread runs.
namespace guozhuang::test {

/// Sets a variable, for the life of this object.
class Environment {
public:
    Environment(std::string name, const std::string& value)
        : name_(std::move(name)), before_(base::environment(name_)) {
        setenv(name_.c_str(), value.c_str(), 1);
    }
    ~Environment() {
        before_ ? setenv(name_.c_str(), before_->c_str(), 1) : unsetenv(name_.c_str());
    }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;

private:
    std::string name_;
    std::optional<std::string> before_;
};

/// Takes the library's messages, for the life of this object.
class LogCapture {
public:
    LogCapture() {
        set_log_callback([this](LogLevel, std::string_view message) {
            const std::lock_guard lock(mutex_);
            messages_.emplace_back(message);
        });
    }
    ~LogCapture() { set_log_callback({}); }
    LogCapture(const LogCapture&) = delete;
    LogCapture& operator=(const LogCapture&) = delete;

    /// The messages that contain the text.
    std::vector<std::string> with(const std::string& text) const {
        const std::lock_guard lock(mutex_);
        std::vector<std::string> found;
        for (const auto& message : messages_)
            if (message.find(text) != std::string::npos) found.push_back(message);
        return found;
    }

private:
    mutable std::mutex mutex_;
    std::vector<std::string> messages_;
};

}  // namespace guozhuang::test
