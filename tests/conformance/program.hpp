#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <guozhuang/guozhuang.hpp>
#include <map>
#include <sstream>
#include <string>
#include <vector>

/// The lines of the conformance suite, read and written (README.md).
namespace conformance {

namespace gz = guozhuang;

/// The enumerator of that name.
template <class All>
auto named(const All& all, const std::string& name) {
    return *std::ranges::find(all, name, [](auto each) { return gz::name_of(each); });
}

inline std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
    return parts;
}

template <class Number>
std::vector<Number> numbers(const std::string& text, char separator) {
    std::vector<Number> all;
    for (const auto& part : split(text, separator))
        all.push_back(static_cast<Number>(std::stoll(part)));
    return all;
}

/// `i16:2x1:01000200`.
struct Tensor {
    explicit Tensor(const std::string& text) {
        const auto fields = split(text, ':');
        dtype = named(gz::all_dtypes, fields.at(0));
        if (fields.at(1) != ".") shape = numbers<std::int64_t>(fields[1], 'x');
        const auto& hex = fields.at(2);
        for (std::size_t i = 0; hex != "." && i < hex.size(); i += 2) {
            unsigned byte = 0;
            std::from_chars(&hex[i], &hex[i] + 2, byte, 16);
            bytes.push_back(static_cast<std::byte>(byte));
        }
    }
    gz::TensorView view() { return {bytes.data(), dtype, shape}; }
    std::string text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

    gz::DType dtype;
    gz::Shape shape;
    std::vector<std::byte> bytes;
};

template <class Numbers>
std::string joined(const Numbers& numbers, char separator) {
    std::string text;
    for (const auto number : numbers)
        text += (text.empty() ? "" : std::string(1, separator)) + std::to_string(number);
    return text.empty() ? "." : text;
}

inline std::string written(const gz::TensorView& tensor) {
    constexpr char digits[] = "0123456789abcdef";
    std::string hex;
    for (const auto byte : tensor.memory()) {
        hex += digits[static_cast<unsigned>(byte) >> 4];
        hex += digits[static_cast<unsigned>(byte) & 15];
    }
    return " " + std::string(gz::name_of(tensor.dtype)) + ":" + joined(tensor.shape, 'x') + ":" +
           (hex.empty() ? "." : hex);
}

inline std::string written(std::vector<Tensor>& tensors) {
    std::string text;
    for (auto& tensor : tensors) text += written(tensor.view());
    return text;
}

/// One line without its number.
struct Case {
    explicit Case(std::istream& line) {
        line >> operation;
        for (std::string word; line >> word;) {
            const auto end = word.find('=');
            if (word.find(':') < end)
                tensors.emplace_back(word);
            else
                options[word.substr(0, end)] = end < word.size() ? word.substr(end + 1) : "";
        }
        given = written(tensors);
    }
    bool has(const std::string& key) const { return options.contains(key); }
    /// An option that the operation needs.
    const std::string& at(const std::string& key) const { return options.at(key); }
    std::string get(const std::string& key, const std::string& otherwise) const {
        return has(key) ? at(key) : otherwise;
    }
    /// Whether a later case waits for it.
    bool begins() const { return has("begin"); }
    std::vector<gz::TensorView> views() {
        std::vector<gz::TensorView> all;
        for (auto& tensor : tensors) all.push_back(tensor.view());
        return all;
    }

    std::string operation;
    std::map<std::string, std::string> options;
    std::vector<Tensor> tensors;
    std::string given;  ///< the tensors, as they came
};

inline std::string written_bytes(std::string& bytes) {
    return written(
        gz::TensorView(bytes.data(), gz::DType::u8, {static_cast<std::int64_t>(bytes.size())}));
}

inline std::string written(gz::Result result) {
    return written(result.view()) + " rows=" + joined(result.rows, ',');
}

inline std::string written(std::vector<gz::Result> results) {
    std::string text;
    for (auto& result : results) text += written(std::move(result));
    return text;
}

inline std::string written(const gz::Error& error) {
    const auto or_dot = [](const std::string& text) { return text.empty() ? "." : text; };
    return "error " + std::string(gz::name_of(error.code())) + "|" + or_dot(error.operation()) +
           "|" + or_dot(error.tensor()) + "|" + joined(error.ranks(), ',') + "|" + error.what();
}

}  // namespace conformance
