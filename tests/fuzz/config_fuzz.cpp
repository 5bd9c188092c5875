// Values of variables: every row of the table tries every text. GUOZHUANG_FAILPOINT's faults are
// among them.
#include "base/config.hpp"
#include "fuzz/fuzz.hpp"

namespace guozhuang::fuzz {

void decode(Input input) {
    const auto text = text_of(input);
    for (const auto& row : base::config_table()) {
        base::Config config, again;
        if (!row.parse(config, text)) continue;
        const auto printed = row.print(config);
        require(row.parse(again, printed) && row.print(again) == printed,
                "what is accepted reads back as it prints");
    }
    if (const auto fault = base::parse_fault(text))
        require(print(*fault) == text, "a fault is written in one way");
}

std::vector<Seed> seeds() {
    std::vector<Seed> all;
    for (const auto& row : base::config_table()) all.push_back(seed_of(row.print({})));
    for (const auto* text : {"64M", "1G", "0.001", "1e6", "./traces", "off", "recursive_doubling",
                             "report", "debug", "execute@1:3=kill", "segment_send@0:1=stop:300",
                             "init@2:1=delay:20000", "closed@7:1=error"})
        all.push_back(seed_of(text));
    return all;
}

}  // namespace guozhuang::fuzz
