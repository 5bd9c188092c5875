#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace guozhuang::protocol {

/// The name of a request with its hash, computed once. Copies share the text. A moved-from name may
/// only be assigned to.
class Name {
public:
    Name() noexcept = default;  ///< no text
    Name(std::string text)      // NOLINT(google-explicit-constructor): a name is a text
        : hash_(hash_of(text)),
          text_(text.empty() ? nullptr : std::make_shared<const std::string>(std::move(text))) {}
    Name(const char* text)  // NOLINT(google-explicit-constructor)
        : Name(std::string(text)) {}
    explicit Name(std::string_view text) : Name(std::string(text)) {}

    const std::string& text() const noexcept {
        static const std::string none;
        return text_ ? *text_ : none;
    }
    operator const std::string&() const noexcept {  // NOLINT(google-explicit-constructor)
        return text();
    }
    std::size_t hash() const noexcept { return hash_; }

    static std::size_t hash_of(std::string_view text) noexcept {
        return std::hash<std::string_view>()(text);
    }

    friend bool operator==(const Name& one, const Name& other) noexcept {
        return one.text_ == other.text_ || (one.hash_ == other.hash_ && one.text() == other.text());
    }
    template <std::same_as<std::string_view> Text>
    friend bool operator==(const Name& name, Text text) noexcept {
        return name.text() == text;
    }

private:
    std::size_t hash_ = hash_of({});
    std::shared_ptr<const std::string> text_;  ///< null: no text
};

/// For tables by name, in which std::equal_to<> finds texts, too.
struct NameHash {
    using is_transparent = void;
    std::size_t operator()(const Name& name) const noexcept { return name.hash(); }
    std::size_t operator()(std::string_view text) const noexcept { return Name::hash_of(text); }
};

}  // namespace guozhuang::protocol
