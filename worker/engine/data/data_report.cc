#include "worker/engine/data/data_report.h"

#include <algorithm>

#include "worker/engine/data/pack.h"

namespace sft::engine {
namespace {

double ShareOfFilling(int64_t tokens, int64_t room) {
  return room == 0 ? 0 : 1.0 - static_cast<double>(tokens) / static_cast<double>(room);
}

int64_t Batches(int64_t rows, int64_t batch) { return (rows + batch - 1) / batch; }

}  // namespace

DataReport ReportOn(const Dataset& dataset, int64_t sequence_length, int64_t batch, bool pairs) {
  DataReport report;
  std::vector<int64_t> lengths;
  lengths.reserve(static_cast<size_t>(dataset.size()));
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const int64_t length = dataset.Length(i);
    report.trained_tokens += std::min(length, sequence_length);
    if (pairs && i % 2 == 1) {
      lengths.back() = std::max(lengths.back(), length);
    } else {
      lengths.push_back(length);
    }
  }
  if (lengths.empty()) return report;
  std::vector<int64_t> cut = lengths;
  for (int64_t& length : cut) length = std::min(length, sequence_length);

  int64_t tokens = 0, padded = 0;
  for (size_t begin = 0; begin < cut.size(); begin += static_cast<size_t>(batch)) {
    const size_t end = std::min(begin + static_cast<size_t>(batch), cut.size());
    int64_t longest = 0;
    for (size_t i = begin; i < end; ++i) {
      tokens += cut[i];
      longest = std::max(longest, cut[i]);
    }
    padded += longest * static_cast<int64_t>(end - begin);
  }
  const auto sequences = static_cast<int64_t>(PackFirstFitDecreasing(cut, sequence_length).size());
  report.padded_share = ShareOfFilling(tokens, padded);
  report.packed_share = ShareOfFilling(tokens, sequences * sequence_length);
  report.rows = static_cast<int64_t>(lengths.size());
  report.steps = Batches(report.rows, batch);
  report.packed_steps = Batches(sequences, batch);

  std::ranges::sort(lengths);
  // The smallest length that this share of the rows does not exceed.
  const auto quantile = [&lengths](int64_t percent) {
    const size_t rank = (lengths.size() * static_cast<size_t>(percent) + 99) / 100;
    return lengths[std::max<size_t>(rank, 1) - 1];
  };
  report.shortest = lengths.front();
  report.median = quantile(50);
  report.p90 = quantile(90);
  report.p99 = quantile(99);
  report.longest = lengths.back();
  std::vector<int64_t> limits = {1024, 2048, 4096, 8192, 16384, 32768, sequence_length};
  std::ranges::sort(limits);
  limits.erase(std::ranges::unique(limits).begin(), limits.end());
  for (const int64_t limit : limits) {
    const auto first = std::ranges::upper_bound(lengths, limit);
    report.longer.push_back({limit, lengths.end() - first});
  }
  return report;
}

std::string MarkedText(const Document& document, const Tokenizer& tokenizer, std::string_view begin,
                       std::string_view end, std::string (*show)(std::string_view)) {
  std::string text;
  for (size_t from = 0; from < document.tokens.size();) {
    size_t to = from + 1;
    while (to < document.tokens.size() && document.loss[to] == document.loss[from]) ++to;
    const bool loss = document.loss[from] != 0;
    if (loss) text += begin;
    const std::string run =
        tokenizer.Decode(document.tokens.subspan(from, to - from), /*skip_special=*/false);
    text += show != nullptr ? show(run) : run;
    if (loss) text += end;
    from = to;
  }
  return text;
}

}  // namespace sft::engine
