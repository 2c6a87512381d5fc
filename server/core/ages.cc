#include "server/core/ages.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace sft::server {

int64_t Ages::Of(const std::string& key, int64_t since_us) {
  const auto [entry, added] = seen_.try_emplace(key);
  Seen& seen = entry->second;
  if (added) {
    seen.age_us = std::max<int64_t>(0, UnixMicros(clock_.Wall()) - since_us);
    seen.at = clock_.Mono();
  }
  seen.asked = true;
  return seen.age_us +
         std::chrono::duration_cast<std::chrono::microseconds>(clock_.Mono() - seen.at).count();
}

void Ages::EndRound() {
  for (auto entry = seen_.begin(); entry != seen_.end();) {
    const bool asked = std::exchange(entry->second.asked, false);
    entry = asked ? std::next(entry) : seen_.erase(entry);
  }
}

}  // namespace sft::server
