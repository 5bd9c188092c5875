#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace guozhuang::protocol {

/// The name of a request with its hash, computed once. Copies share the text.
class Name {
public:
    Name() noexcept = default;  ///< no text
    Name(std::string text)      // NOLINT(google-explicit-constructor): a name is a text
        : hashed_(std::make_shared<const Hashed>(std::move(text))) {}
    Name(const char* text)  // NOLINT(google-explicit-constructor)
        : Name(std::string(text)) {}
    explicit Name(std::string_view text) : Name(std::string(text)) {}

    const std::string& text() const noexcept {
        static const std::string none;
        return hashed_ ? hashed_->text : none;
    }
    operator const std::string&() const noexcept {  // NOLINT(google-explicit-constructor)
        return text();
    }
    std::size_t hash() const noexcept { return hashed_ ? hashed_->hash : hash_of({}); }

    static std::size_t hash_of(std::string_view text) noexcept {
        return std::hash<std::string_view>()(text);
    }

    friend bool operator==(const Name& one, const Name& other) noexcept {
        return one.hashed_ == other.hashed_ ||
               (one.hash() == other.hash() && one.text() == other.text());
    }

private:
    struct Hashed {
        explicit Hashed(std::string name) : text(std::move(name)), hash(hash_of(text)) {}
        std::string text;
        std::size_t hash;
    };
    std::shared_ptr<const Hashed> hashed_;  ///< null: no text
};

/// For tables by name, in which texts can be looked up, too.
struct NameHash {
    using is_transparent = void;
    std::size_t operator()(const Name& name) const noexcept { return name.hash(); }
    std::size_t operator()(std::string_view text) const noexcept { return Name::hash_of(text); }
};
struct NameEqual {
    using is_transparent = void;
    bool operator()(const Name& one, const Name& other) const noexcept { return one == other; }
    bool operator()(std::string_view text, const Name& name) const noexcept {
        return text == name.text();
    }
    bool operator()(const Name& name, std::string_view text) const noexcept {
        return text == name.text();
    }
};

}  // namespace guozhuang::protocol
