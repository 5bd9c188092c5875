#include "support/cases/bad_input_source.hpp"

namespace guozhuang::test {

std::string name_of(Wrong wrong) {
    constexpr const char* names[] = {"shape",
                                     "dtype",
                                     "operation",
                                     "op",
                                     "root",
                                     "prescale",
                                     "postscale",
                                     "device",
                                     "number of tensors",
                                     "kind of request",
                                     "order",
                                     "argument",
                                     "name",
                                     "set"};
    return names[static_cast<std::size_t>(wrong)];
}

Finish start(const Input& input, const Among& all, const std::string& name) {
    const auto& [dtype, shape] = input.tensors.front();
    const auto among = all.on({input.device, 0});
    const auto row = [&] { return Shape(shape.begin() + 1, shape.end()); };
    switch (input.kind) {
        case Input::Kind::allreduce: return start_allreduce(among, name, {dtype, shape, input.how});
        case Input::Kind::broadcast: return start_broadcast(among, name, dtype, shape, input.root);
        case Input::Kind::all_gather:
            return start_all_gather(among, name, dtype, input.rows, row());
        case Input::Kind::all_to_all:
            return start_all_to_all(among, name, dtype, input.splits, row());
        case Input::Kind::reduce_scatter:
            return start_reduce_scatter(among, name, {dtype, shape, input.how});
        case Input::Kind::group: break;
    }
    std::vector<Reduce> reduces;
    for (const auto& [tensor_dtype, tensor_shape] : input.tensors)
        reduces.push_back({tensor_dtype, tensor_shape, input.how});
    return start_grouped_allreduce(among, name, reduces);
}

std::string shape_text(const Input& input, std::size_t tensor) {
    const auto& shape = input.tensors[tensor].second;
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i)
        text += text_of(i == 0 ? "" : ", ",
                        i == 0 && input.has_rows() ? std::string("any") : std::to_string(shape[i]));
    return text + "]";
}

std::pair<std::string, std::string> aspect_of(const Input& input, Wrong wrong, std::size_t tensor) {
    switch (wrong) {
        case Wrong::shape: return {"shapes", shape_text(input, tensor)};
        case Wrong::dtype: return {"dtypes", std::string(name_of(input.tensors[tensor].first))};
        case Wrong::operation: return {"operations", input.operation()};
        case Wrong::op: return {"reduce ops", std::string(name_of(input.how.op))};
        case Wrong::root: return {"roots", text_of(input.root)};
        case Wrong::prescale: return {"prescales", text_of(input.how.prescale)};
        case Wrong::postscale: return {"postscales", text_of(input.how.postscale)};
        case Wrong::device: return {"device kinds", std::string(name_of(input.device))};
        case Wrong::tensors: return {"numbers of tensors", text_of(input.tensors.size())};
        default:
            return {"kinds of request",
                    input.kind == Input::Kind::group ? "a group" : "a single tensor"};
    }
}

}  // namespace guozhuang::test
