#include "worker/rank/cache_room.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/bytes.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

// Keys and values are kept in pages of so many tokens, each of one request.
constexpr int64_t kPageTokens = 16;

int64_t WholePages(int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens * kPageTokens;
}

}  // namespace

int64_t CacheTokens(int64_t requests, int64_t longest, const CacheRoom& room) {
  const int64_t one = WholePages(longest);
  if (room.token_bytes > 0 && one > room.free_bytes / room.token_bytes) {
    throw engine::UserError(
        fmt::format(
            "a prompt and its answer of {} tokens together need {} for keys and values, and "
            "{} of {} are free beside the weights",
            longest, BytesText(one * room.token_bytes), BytesText(room.free_bytes), room.device),
        "no_room_for_answers",
        "lower generate.max_new_tokens, shorten the prompt, or choose a GPU with more memory");
  }
  const int64_t fits = room.token_bytes > 0 ? room.usable_bytes / room.token_bytes : requests * one;
  return std::max(one, std::min(requests * one, fits / kPageTokens * kPageTokens));
}

}  // namespace sft::rank
