#pragma once

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "support/cases/bad_input_source.hpp"
#include "support/cases/error_cases.hpp"

/// Requests in which some ranks get one thing wrong. Each ends as docs/errors.md says, and the next
/// operation is right.
namespace guozhuang::test {

/// Counts of a job's inputs and of their outcomes.
struct Tally {
    int inputs = 0, hangs = 0, wrong_results = 0, unnamed_culprits = 0;

    int faults() const { return hangs + wrong_results + unnamed_culprits; }
    std::string text() const {
        return text_of("bad inputs: ", inputs, ", hangs: ", hangs,
                       ", wrong results: ", wrong_results,
                       ", unnamed culprits: ", unnamed_culprits);
    }
};

/// "rank 1", "ranks 0,2".
std::string list(const std::vector<int>& ranks);

class BadInputs {
public:
    BadInputs(Session& session, Report& report, std::uint64_t seed)
        : session_(session),
          report_(report),
          source_(session.size(), seed),
          everybody_(&session),
          everybody_too_(ProcessSet::create(everybody_.ranks(), &session)) {}

    /// Runs until the first one that does not end as it should, on any rank.
    const Tally& run(int inputs) {
        for (bool go_on = true; go_on && tally_.inputs < inputs; go_on = is_usable()) {
            ++tally_.inputs;
            bad_ = source_.draw();
            play();
        }
        everybody_too_.remove();
        return tally_;
    }

private:
    using IsSaid = std::function<bool(const std::string&)>;

    /// An operation that should be done and still waits after this time hangs, and ends the job.
    static constexpr auto hang_limit = std::chrono::seconds(20);

    bool is_odd() const { return bad_.is_odd[static_cast<std::size_t>(session_.rank())]; }
    std::string label(const std::string& name) const {
        return bad_.usual.operation() + " '" + name + "'";
    }

    void play() {
        switch (bad_.wrong) {
            case Wrong::order: return play_order();
            case Wrong::argument: return play_argument();
            case Wrong::name: return play_stall(everybody_, bad_.odd_name);
            case Wrong::set: return play_stall(everybody_too_, bad_.name);
            default: return play_mismatch();
        }
    }

    Finish start(const Input& input, const std::string& name) const {
        return test::start(input, Among(everybody_).within(hang_limit), name);
    }

    void play_mismatch() {
        const bool odd_first = bad_.is_odd.front();
        const auto& first = odd_first ? bad_.odd : bad_.usual;
        const auto& second = odd_first ? bad_.usual : bad_.odd;
        const bool of_tensor = bad_.wrong == Wrong::shape || bad_.wrong == Wrong::dtype;
        const bool of_group = of_tensor && bad_.usual.kind == Input::Kind::group;
        const auto text =
            text_of(bad_.wrong == Wrong::operation ? "" : first.operation() + " ", "'", bad_.name,
                    of_group ? text_of("[", bad_.tensor, "]") : "",
                    "': ", aspect_of(first, bad_.wrong, bad_.tensor).first,
                    " differ: ", bad_.value(first), " on ", list(bad_.ranks(odd_first)), "; ",
                    bad_.value(second), " on ", list(bad_.ranks(!odd_first)));
        judge(
            error_of_operation([&] { return start(is_odd() ? bad_.odd : bad_.usual, bad_.name); }),
            ErrorCode::mismatch, text, [&](const auto& said) { return said == text; });
    }

    void play_order() {
        std::vector<Finish> started;
        for (const bool second : {is_odd(), !is_odd()})
            started.push_back(start(second ? bad_.odd : bad_.usual,
                                    second ? bad_.name + ", the second" : bad_.name));
        for (const auto& finish : started) expect_right([&] { return finish; });
    }

    /// Only the caller gets the error, before anything is sent, and then repeats the call
    /// correctly.
    void play_argument() {
        if (is_odd()) {
            std::string complaint;
            const auto error = error_of([&] { start_badly(complaint); });
            judge(error, ErrorCode::invalid_argument, complaint, [&](const auto& said) {
                return said.starts_with(bad_.usual.operation() + " '" + bad_.name) &&
                       said.find(complaint) != std::string::npos;
            });
        }
        expect_right([&] { return start(bad_.usual, bad_.name); });
    }

    /// The usual request with an argument that cannot be right.
    void start_badly(std::string& complaint) const {
        auto [dtype, shape] = bad_.usual.tensors.front();
        const Options options{.name = bad_.name, .process_set = everybody_};
        if (bad_.variant == 0 && bad_.usual.kind == Input::Kind::broadcast) {
            complaint = text_of("root ", session_.size(), " is not a rank; there are ranks 0 to ",
                                session_.size() - 1);
            broadcast_async(Tensor(dtype, shape).view(), session_.size(), options);
        } else if (bad_.variant == 0 && bad_.usual.kind == Input::Kind::all_to_all) {
            auto splits = bad_.usual.splits[static_cast<std::size_t>(session_.rank())];
            shape[0] = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
            splits.back() += 2;
            complaint = text_of("sum to ", shape[0] + 2, ", but dim 0 is ", shape[0]);
            all_to_all_async(Tensor(dtype, shape).view(), splits, options);
        } else if (bad_.variant == 0 && bad_.usual.reduces()) {
            auto input = bad_.usual;
            const bool is_scaled = !is_floating(dtype);
            if (is_scaled)
                input.how = {ReduceOp::max, 0.5};
            else
                input.how.op = static_cast<ReduceOp>(77);
            complaint =
                is_scaled ? text_of("scales must be 1 on ", name_of(dtype)) : "no reduce op 77";
            start(input, bad_.name);
        } else {
            complaint = "negative extent";
            start_on(TensorView(&complaint, dtype, {-1}));
        }
    }

    /// The usual operation on another tensor.
    void start_on(const TensorView& tensor) const {
        const Options options{.name = bad_.name, .process_set = everybody_};
        const AllreduceOptions reduction{
            .name = bad_.name, .op = ReduceOp::max, .process_set = everybody_};
        switch (bad_.usual.kind) {
            case Input::Kind::allreduce: allreduce_async(tensor, reduction); break;
            case Input::Kind::group: grouped_allreduce_async({&tensor, 1}, reduction); break;
            case Input::Kind::broadcast: broadcast_async(tensor, 0, options); break;
            case Input::Kind::all_gather: all_gather_async(tensor, options); break;
            case Input::Kind::all_to_all: all_to_all_async(tensor, {}, options); break;
            case Input::Kind::reduce_scatter: reduce_scatter_async(tensor, reduction); break;
        }
    }

    /// The odd ranks submit it under another name or in another set. Neither half is done, and
    /// nothing else is disturbed, until each rank has submitted what the others have, too.
    void play_stall(const ProcessSet& odd_set, const std::string& odd_name) {
        const auto submit = [&](bool odd) {
            return test::start(bad_.usual, Among(odd ? odd_set : everybody_).within(hang_limit),
                               odd ? odd_name : bad_.name);
        };
        const bool odd_first = bad_.odd_is_early;
        std::optional<Finish> early;
        if (is_odd() == odd_first) early = submit(odd_first);
        expect_right([&] { return submit(!odd_first); });
        expect_right([&] { return early ? *early : submit(odd_first); });
    }

    template <class Start>
    static std::optional<Error> error_of_operation(Start&& start) {
        Report unread;
        return error_of([&] { start()(unread); });
    }

    void judge(const std::optional<Error>& error, ErrorCode code, const std::string& text,
               const IsSaid& is_said) {
        if (!error) return fault(tally_.wrong_results, "no error, but this was expected: " + text);
        if (error->code() == ErrorCode::timeout && code != ErrorCode::timeout)
            return fault(tally_.hangs, error->what());
        if (error->code() != code)
            return fault(tally_.wrong_results,
                         text_of("is ", name_of(error->code()), ": ", error->what()));
        if (!is_said(error->what()))
            fault(tally_.unnamed_culprits, text_of(error->what(), " instead of ", text));
    }

    template <class Start>
    void expect_right(Start&& start) {
        Report found;
        const auto error = error_of([&] { start()(found); });
        if (error)
            return fault(error->code() == ErrorCode::timeout ? tally_.hangs : tally_.wrong_results,
                         error->what());
        if (!found.problems().empty()) fault(tally_.wrong_results, found.problems().front());
    }

    /// The next operation is right, and no rank has found a fault.
    bool is_usable() {
        std::vector<int> sums{1, tally_.faults()};
        const auto error = error_of([&] {
            allreduce(
                sums,
                {.name = "the next operation", .process_set = everybody_, .timeout = hang_limit});
        });
        if (error)
            fault(error->code() == ErrorCode::timeout ? tally_.hangs : tally_.wrong_results,
                  error->what());
        else if (sums[0] != session_.size())
            fault(tally_.wrong_results, "the next operation is wrong");
        return !error && sums[1] == 0;
    }

    void fault(int& counter, const std::string& what) {
        ++counter;
        report_.expect(false, text_of("input ", tally_.inputs, ", ", label(bad_.name),
                                      " with a wrong ", name_of(bad_.wrong), ": ", what));
    }

    Session& session_;
    Report& report_;
    BadInputSource source_;
    ProcessSet everybody_, everybody_too_;
    Tally tally_;
    BadInput bad_;
};

/// `tally`: of all ranks, added to on rank 0.
RankCase bad_inputs(std::uint64_t seed, int inputs, Tally& tally);

}  // namespace guozhuang::test
