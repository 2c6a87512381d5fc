#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/generate/beam_search.h"
#include "worker/engine/generate/pages.h"
#include "worker/engine/generate/position_tables.h"
#include "worker/engine/kernels/graph.h"
#include "worker/engine/model/decoder.h"

namespace sft::engine {

// A token of a forward.
struct PagedRow {
  int64_t token = 0, position = 0;
  int64_t request = 0;   // row of the page tables
  int64_t slot = 0;      // of its keys and values: page * PageTable::kPageTokens + place in it
  bool is_long = false;  // it belongs to a document that turns at long frequencies
  bool adapted = true;   // adapters act on it
  int64_t state = 0;     // the number of its request's states
};

// How likely a token was after those before it, and what was likeliest there (of the least id where
// there are several). Natural logarithms.
struct TokenScore {
  double log_probability = 0;
  int32_t likeliest = 0;
  double likeliest_log_probability = 0;
};

// Bytes that generation keeps of a token, keys and values, and of a request, states of gated
// DeltaNets, in all layers.
int64_t TokenBytesOf(const Decoder& decoder, at::ScalarType compute);
int64_t StateBytesOf(const Decoder& decoder, at::ScalarType compute);

// Runs a decoder over tokens whose keys and values lie in pages, forward only. Gated DeltaNets have
// states instead, a set of them for each request.
//
// A row's bits depend on its request alone, and on a GPU on which of the two ways it goes: products
// are made in tiles of a fixed number of rows, the last filled with padding, one number for tokens
// of prompts and one for single tokens. A GPU's forward of single tokens is recorded once
// (kernels/graph.h) where the weights stay where they are. Thread-compatible.
class PagedDecoder {
 public:
  // Rows of one forward of single tokens on a GPU, and the rows that a forward of pieces of prompts
  // is filled up to a multiple of.
  static constexpr int64_t kTokenTile = 64, kPromptTile = 512;

  // Borrows `decoder`. `most_pages`: pages that there may be; `requests`: rows of the page tables,
  // and sets of states.
  PagedDecoder(const ModelConfig& config, Decoder& decoder, const at::TensorOptions& activations,
               int64_t most_pages, int64_t requests);

  // Makes room for requests of so many tokens, for pages numbered below `pages`, and for states
  // below `states`.
  void Reserve(int64_t tokens, int64_t pages, int64_t states);
  // The pages of each request, in order: row i of the tables.
  void SetTables(const std::vector<std::span<const int32_t>>& pages);
  // Copies keys and values of whole pages, in all layers, to others.
  void CopyPages(std::span<const BeamPages::Copy> copies);
  // Copies states to others, in all layers, as if all at once.
  void CopyStates(std::span<const int32_t> from, std::span<const int32_t> to);
  bool IsLong(int64_t tokens) const { return positions_.IsLong(tokens); }

  // What the head makes of some rows, on the device.
  struct Scores {
    at::Tensor logits;     // [n, V]; valid until the next forward
    at::Tensor likeliest;  // fp64 [2, n]: the token of the largest logit, of the least id where
                           // there are several, and that logit; NaN stands above all
    std::vector<TokenScore> targets;
  };
  // A row, and the token after it whose score is wanted.
  struct Target {
    int64_t row = 0;
    int32_t token = 0;
  };
  // Pieces of prompts: rows of one request follow each other. Scores of the rows that `last` names,
  // and of targets.
  Scores Prompts(std::span<const PagedRow> rows, std::span<const int64_t> last,
                 std::span<const Target> targets = {});
  // On a GPU: one token of each of some requests, at most kTokenTile; scores of all.
  Scores Tokens(std::span<const PagedRow> rows);

 private:
  // What a forward reads, on the device.
  struct Inputs {
    at::Tensor tokens, positions, slots, places, is_long, adapter_rows;
    int64_t tile = 1;
    bool pieces = true;
    ops::Pieces documents;
  };

  // The pieces that `rows`, filled up to `count`, are of: rows of one request that follow each
  // other are one, or, `single`, each row is.
  static ops::Pieces PiecesOf(std::span<const PagedRow> rows, int64_t count, bool single);
  // Zeros the states of those documents that begin in `rows`.
  void BeginStates(std::span<const PagedRow> rows);
  void ReserveStates(int64_t count);
  bool on_gpu() const { return activations_.device().is_cuda(); }
  // Rows [count], those beyond `rows` padding, as one matrix of int64, and the pieces that they
  // are.
  at::Tensor Pack(std::span<const PagedRow> rows, int64_t count, const ops::Pieces& pieces) const;
  Inputs Unpack(const at::Tensor& packed, int64_t count, bool reads_adapter_rows,
                ops::Pieces pieces) const;
  at::Tensor RunBlock(size_t layer, const at::Tensor& x, const BlockContext& context,
                      const Inputs& inputs);
  at::Tensor RunBlocks(const Inputs& inputs);
  Scores ScoresOf(const at::Tensor& x);
  std::vector<TokenScore> ScoresOfTargets(const at::Tensor& x, std::span<const Target> targets);
  // The forward of single tokens of so many rows: what it reads and writes.
  struct Recording {
    at::Tensor packed;
    Scores scores;
    std::unique_ptr<Graph> graph;
    bool has_run = false;
    int64_t moves = -1;  // when it was recorded
  };

  Decoder& decoder_;
  at::TensorOptions activations_;
  int64_t most_pages_ = 0, requests_ = 0;
  std::vector<LayerPages> layers_;  // empty where a layer reads those of another, or has states
  std::vector<DeltaNet::States> states_;  // by layer
  PositionTables positions_;
  at::Tensor tables_;  // int32 [requests, width]
  std::unique_ptr<GraphRecorder> recorder_;
  std::map<int64_t, Recording> recordings_;  // by rows
  bool few_rows_ = false;  // products of fewer rows than a tile are faster: their weights are NF4
  int64_t moves_ = 0;      // of what a recording reads
};

}  // namespace sft::engine
