#pragma once

#include <cstdint>
#include <string>

namespace sft::rank {

// Memory for the keys and values of a process that answers, once its weights are loaded.
struct CacheRoom {
  int64_t free_bytes = 0;    // that the process may still take
  int64_t usable_bytes = 0;  // of them: the rest is for everything else
  int64_t token_bytes = 0;   // keys and values of one token
  std::string device;        // for messages: "cuda:0 NVIDIA H100 80GB HBM3"
};

// Tokens whose keys and values are kept: room for `requests` at once of at most `longest` tokens
// each, prompt and answer, all beams of a search together, or as many as fit; for one such request
// at least. Throws UserError where not even one fits into all that is free. `beams` is for its
// words.
int64_t CacheTokens(int64_t requests, int64_t longest, const CacheRoom& room, int64_t beams = 1);

}  // namespace sft::rank
