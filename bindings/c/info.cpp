#include <guozhuang/info.hpp>
#include <guozhuang/log.hpp>
#include <guozhuang/timeline.hpp>
#include <guozhuang/version.hpp>

#include "border.hpp"

struct GzInfo {
    std::vector<guozhuang::InfoItem> items;
};

using namespace guozhuang::c;  // NOLINT(google-build-using-namespace)
namespace gz = guozhuang;

const char* gz_version() {
    return gz::version();
}

GzStatus gz_start_timeline(const char* directory, int* started) {
    return put(started, [&] {
        return gz::start_timeline(text_of(&required(directory, "the directory"))) ? 1 : 0;
    });
}
GzStatus gz_stop_timeline() {
    return guarded([] { gz::stop_timeline(); });
}

GzStatus gz_set_log_callback(void (*callback)(GzLogLevel level, const char* message, void* context),
                             void* context) {
    return guarded([&] {
        if (callback == nullptr) return gz::set_log_callback({});
        gz::set_log_callback([=](gz::LogLevel level, std::string_view message) {
            callback(static_cast<GzLogLevel>(level), std::string(message).c_str(), context);
        });
    });
}
GzStatus gz_log_message(GzLogLevel level, const char* message) {
    return guarded([&] {
        gz::log_message(enumerator(level, gz::LogLevel::error, "log level"),
                        &required(message, "the message"));
    });
}

GzStatus gz_traffic(uint64_t* bytes, uint64_t* messages) {
    return guarded([&] {
        required(messages, "where the messages go");
        required(bytes, "where the bytes go");
        const auto so_far = gz::traffic();
        *bytes = so_far.bytes;
        *messages = so_far.messages;
    });
}
GzStatus gz_try_devices() {
    return guarded([] { gz::try_devices(); });
}

GzStatus gz_info_create(GzInfo** info) {
    return create(info, [] { return new GzInfo{gz::info()}; });
}
GzStatus gz_info_count(const GzInfo* info, size_t* count) {
    return put(count, [&] { return required(info, "the info").items.size(); });
}
GzStatus gz_info_get(const GzInfo* info, size_t index, const char** section, const char** key,
                     const char** value) {
    return guarded([&] {
        const auto& item = item_of(required(info, "the info").items, index, "items");
        required(key, "where the key goes");
        required(value, "where the value goes");
        required(section, "where the section goes") = item.section.c_str();
        *key = item.key.c_str();
        *value = item.value.c_str();
    });
}
void gz_info_free(GzInfo* info) {
    delete info;
}
