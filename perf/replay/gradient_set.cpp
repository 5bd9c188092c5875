#include "replay/gradient_set.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace guozhuang::perf {
namespace {

namespace fs = std::filesystem;

/// The project's sets are beside the program, both built and installed.
fs::path resolve(const std::string& path_or_name) {
    if (path_or_name.find('/') != std::string::npos || fs::exists(path_or_name))
        return path_or_name;
    const fs::path program = fs::canonical("/proc/self/exe");
    return program.parent_path().parent_path() / "share/guozhuang/gradient_sets" /
           (path_or_name + ".json");
}

std::size_t room_for(std::span<const std::int64_t> shape) {
    return Memory::round_up(count_of(shape) * sizeof(float));
}

std::size_t room_for_all(const std::vector<GradientShape>& shapes) {
    std::size_t bytes = 0;
    for (const auto& [name, shape] : shapes) bytes += room_for(shape);
    return bytes;
}

}  // namespace

std::vector<GradientShape> read_gradient_set(const std::string& path_or_name) {
    const fs::path path = resolve(path_or_name);
    std::ifstream file(path);
    if (!file) throw std::runtime_error("no gradient set " + path.string());
    std::vector<GradientShape> shapes;
    try {
        const auto set = nlohmann::ordered_json::parse(file);
        for (const auto& [name, extents] : set.items())
            shapes.push_back({name, extents.get<std::vector<std::int64_t>>()});
    } catch (const nlohmann::json::exception& error) {
        throw std::runtime_error(
            path.string() + " is not a gradient set {\"name\": [extents], ...}: " + error.what());
    }
    if (shapes.empty()) throw std::runtime_error(path.string() + " holds no gradients");
    return shapes;
}

Gradients::Gradients(const std::vector<GradientShape>& shapes, MemoryKind memory,
                     const TensorDevice* device)
    : device_(device), memory_(room_for_all(shapes), memory, device) {
    const Device where = device == nullptr ? Device() : device->stream().device;
    auto rest = memory_.all();
    for (const auto& [name, shape] : shapes) {
        const TensorView view(rest.data(), DType::f32, shape, where);
        parameters_.push_back({name, view, view});
        rest = rest.subspan(room_for(shape));
    }
}

}  // namespace guozhuang::perf
