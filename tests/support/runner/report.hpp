#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <guozhuang/session.hpp>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

/// Test cases that run as ranks, which may be threads or processes. A case calls no Catch macro
/// (they are not thread-safe, and a rank that leaves a case early leaves the others waiting): it
/// writes a Report, and what the reports of all ranks say is checked once at the end.
namespace guozhuang::test {

template <class... Parts>
std::string text_of(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    return text.str();
}

/// The findings of one rank. Each rank writes its own.
class Report {
public:
    /// Something bitwise equal on all ranks, if all is well.
    struct Digest {
        std::string label;
        std::uint64_t hash = 0;
    };

    void expect(bool fine, const std::string& what) {
        if (!fine && problems_.size() < most_problems) problems_.push_back(what);
    }
    template <class Value>
    void expect_equal(const Value& value, const Value& expected, const std::string& what) {
        expect(value == expected, text_of(what, ": ", value, " instead of ", expected));
    }
    void same_everywhere(const std::string& label, std::span<const std::byte> bytes) {
        std::uint64_t hash = 0xcbf29ce484222325u + bytes.size();  // FNV-1a
        for (const auto byte : bytes)
            hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
        digests_.push_back({label, hash});
    }
    void same_everywhere(const std::string& label, const std::string& text) {
        same_everywhere(label, std::as_bytes(std::span(text)));
    }

    const std::vector<std::string>& problems() const noexcept { return problems_; }
    /// By label, and by time within a label: ranks may have reached them in different orders.
    std::vector<Digest> digests() const {
        auto sorted = digests_;
        std::ranges::stable_sort(sorted, {}, &Digest::label);
        return sorted;
    }

private:
    static constexpr std::size_t most_problems = 5;
    std::vector<std::string> problems_;
    std::vector<Digest> digests_;
};

using RankCase = std::function<void(Session&, Report&)>;

/// How this rank's digests differ from rank 0's; empty if they do not.
std::string difference(const std::vector<Report::Digest>& own,
                       const std::vector<std::uint64_t>& of_rank0);

std::vector<std::uint64_t> hashes_of(const Report& report);

/// Runs the case as this many ranks, each a thread; returns a line for each problem, so an empty
/// text if all is well.
std::string problems_among(int ranks, const RankCase& body, const RankOptions& options = {});

}  // namespace guozhuang::test
