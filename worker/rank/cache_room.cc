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

int64_t CacheTokens(int64_t requests, int64_t longest, const CacheRoom& room, int64_t beams) {
  const int64_t one = WholePages(longest);
  if (room.token_bytes > 0 && one > room.free_bytes / room.token_bytes) {
    const std::string answer =
        beams > 1 ? fmt::format("the search with {} beams for its answer, {} tokens in all,", beams,
                                longest)
                  : fmt::format("its answer of {} tokens together", longest);
    throw engine::UserError(
        fmt::format("a prompt and {} need {} for keys and values, and {} of {} are free beside the "
                    "weights",
                    answer, BytesText(one * room.token_bytes), BytesText(room.free_bytes),
                    room.device),
        "no_room_for_answers",
        fmt::format("lower {}generate.max_new_tokens, shorten the prompt, or choose a GPU with "
                    "more memory",
                    beams > 1 ? "generate.num_beams or " : ""));
  }
  const int64_t fits = room.token_bytes > 0 ? room.usable_bytes / room.token_bytes : requests * one;
  return std::max(one, std::min(requests * one, fits / kPageTokens * kPageTokens));
}

}  // namespace sft::rank
