#include "worker/engine/data/long_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace sft::engine {
namespace {

using spec::LongRows;

class LongRow {
 public:
  LongRow(const RowEncoder& encoder, EncodedRow whole, const LongRowRule& rule)
      : encoder_(encoder), whole_(std::move(whole)), rule_(rule) {}

  FittedRow Fit(const Row& row) {
    FittedRow fitted;
    fitted.documents = Documents(row);
    int64_t loss = 0;
    for (const EncodedRow& document : fitted.documents) loss += document.LossTokens();
    // What stands behind another turn may be split into other tokens than in the whole row.
    fitted.cut_tokens = std::max<int64_t>(0, Size() - kept_);
    fitted.cut_loss_tokens = std::max<int64_t>(0, whole_.LossTokens() - loss);
    return fitted;
  }

 private:
  std::vector<EncodedRow> Documents(const Row& row) {
    const auto* const conversation = std::get_if<ConversationRow>(&row);
    switch (rule_.rule) {
      case LongRows::kTruncateRight:
        return One(Cut({{0, rule_.length}}));
      case LongRows::kTruncateLeft:
        return One(KeepEnds(First()));
      case LongRows::kTruncateMiddle:
        if (conversation != nullptr) return One(WithoutMiddleTurns(*conversation));
        return One(KeepEnds(rule_.length / 2));
      case LongRows::kSplit:
        return conversation != nullptr ? SplitConversation(*conversation) : SplitText();
      case LongRows::kError:
      case LongRows::kSkip:
        break;
    }
    TooLong(fmt::format("{} tokens", Size()));
  }

  struct Range {
    int64_t begin, end;
  };

  int64_t Size() const { return static_cast<int64_t>(whole_.tokens.size()); }
  // Tokens at the start that stand for it and are not of the text.
  int64_t First() const { return encoder_.StartsWithBos(whole_) ? 1 : 0; }

  [[noreturn]] void TooLong(const std::string& what) const {
    throw RowError(RowProblem::kTooLong,
                   fmt::format("{}, sequence_length is {}", what, rule_.length));
  }

  EncodedRow Cut(std::initializer_list<Range> ranges) const {
    EncodedRow row;
    for (const auto& [begin, end] : ranges) {
      row.tokens.insert(row.tokens.end(), whole_.tokens.begin() + begin,
                        whole_.tokens.begin() + end);
      row.loss.insert(row.loss.end(), whole_.loss.begin() + begin, whole_.loss.begin() + end);
    }
    if (!row.loss.empty()) row.loss[0] = 0;
    return row;
  }

  // The first `first` tokens and as many of the last as there is room for.
  EncodedRow KeepEnds(int64_t first) const {
    EncodedRow row = Cut({{0, first}, {Size() - (rule_.length - first), Size()}});
    // Behind the gap stands a token that nothing before it leads to.
    row.loss[static_cast<size_t>(first)] = 0;
    return row;
  }

  std::vector<EncodedRow> One(EncodedRow row) {
    kept_ = static_cast<int64_t>(row.tokens.size());
    if (row.LossTokens() == 0) {
      throw RowError(RowProblem::kNoAnswer,
                     fmt::format("{} tokens, and none with loss is left when it is cut to {} "
                                 "(sequence_length)",
                                 Size(), rule_.length));
    }
    std::vector<EncodedRow> rows;
    rows.push_back(std::move(row));
    return rows;
  }

  // Windows that end at the last paragraph, else line, of their last quarter.
  std::vector<EncodedRow> SplitText() {
    std::vector<EncodedRow> rows;
    int64_t kept_to = 0;
    for (int64_t begin = 0, end = 0; end < Size();) {
      const int64_t seen = end;
      end = WindowEnd(begin);
      EncodedRow row = Cut({{begin, end}});
      for (int64_t i = begin; i < seen; ++i) row.loss[static_cast<size_t>(i - begin)] = 0;
      if (row.LossTokens() > 0) {
        kept_ += end - std::max(begin, kept_to);
        kept_to = end;
        rows.push_back(std::move(row));
      }
      begin = std::max(end - rule_.overlap, begin + 1);
    }
    return rows;
  }

  int64_t WindowEnd(int64_t begin) const {
    const int64_t most = begin + rule_.length;
    if (most >= Size()) return Size();
    int64_t best = most;
    uint8_t rank = EncodedRow::kNone;
    // Behind what the next piece begins with, so that each goes further than the last.
    const int64_t least = begin + std::max(rule_.length - rule_.length / 4, rule_.overlap + 1);
    for (int64_t i = most; i > least; --i) {
      const uint8_t here = whole_.breaks[static_cast<size_t>(i)];
      if (here <= rank) continue;
      rank = here;
      best = i;
    }
    return best;
  }

  // The messages of a conversation by exchange: each begins with a user's message.
  struct Exchanges {
    size_t head = 0;            // messages before the first exchange
    std::vector<size_t> begin;  // of each, and the end of the last
  };

  static Exchanges ExchangesOf(const ConversationRow& row) {
    Exchanges exchanges;
    const size_t size = row.messages.size();
    const auto role = [&row](size_t i) { return row.messages[i].value("role", ""); };
    while (exchanges.head < size &&
           (role(exchanges.head) == "system" || role(exchanges.head) == "developer")) {
      ++exchanges.head;
    }
    for (size_t i = exchanges.head; i < size; ++i) {
      if (i == exchanges.head || role(i) == "user") exchanges.begin.push_back(i);
    }
    exchanges.begin.push_back(size);
    return exchanges;
  }

  // The head and the given exchanges.
  static ConversationRow Part(const ConversationRow& row, const Exchanges& exchanges,
                              std::initializer_list<std::pair<size_t, size_t>> kept) {
    ConversationRow part{.messages = nlohmann::ordered_json::array(),
                         .tools = row.tools,
                         .variables = row.variables,
                         .trained = {}};
    const auto add = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        part.messages.push_back(row.messages[i]);
        part.trained.push_back(row.trained[i]);
      }
    };
    add(0, exchanges.head);
    for (const auto& [from, to] : kept) add(exchanges.begin[from], exchanges.begin[to]);
    return part;
  }

  // Nothing where it is too long.
  std::optional<EncodedRow> Encoded(ConversationRow part) const {
    const bool trains = std::ranges::find(part.trained, true) != part.trained.end();
    if (!trains) return EncodedRow();
    EncodedRow row = encoder_.Encode(Row(std::move(part)));
    if (static_cast<int64_t>(row.tokens.size()) > rule_.length) return std::nullopt;
    return row;
  }

  // Leaves out as few exchanges behind the first as will do, then the first.
  EncodedRow WithoutMiddleTurns(const ConversationRow& row) const {
    const Exchanges exchanges = ExchangesOf(row);
    const size_t count = exchanges.begin.size() - 1;
    for (const size_t first : {size_t{1}, size_t{0}}) {
      std::optional<EncodedRow> best;
      size_t low = first, high = count;  // the exchange with which the end begins
      while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (auto fits = Encoded(Part(row, exchanges, {{0, first}, {middle, count}}))) {
          best = std::move(fits);
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      if (best && best->LossTokens() > 0) return *std::move(best);
    }
    TooLong(fmt::format("{} tokens, and its last turns alone are too long", Size()));
  }

  // Tokens that every piece begins with: the head, and what the template puts before a question.
  int64_t HeadTokens(const ConversationRow& row, const Exchanges& exchanges) const {
    const auto piece = [&](const char* word) {
      ConversationRow part = Part(row, exchanges, {});
      for (const char* role : {"user", "assistant"}) {
        part.messages.push_back({{"role", role}, {"content", word}});
        part.trained.push_back(role == std::string_view("assistant"));
      }
      return encoder_.Encode(Row(std::move(part))).tokens;
    };
    try {
      const std::vector<int32_t> a = piece("a"), b = piece("b");
      return std::ranges::mismatch(a, b).in1 - a.begin();
    } catch (const RowError&) {
      return 0;  // a template that takes no such turns
    }
  }

  // A piece that begins with the head once more: its loss counts in the first alone.
  void Keep(EncodedRow piece, int64_t head, std::vector<EncodedRow>& rows) {
    const auto size = static_cast<int64_t>(piece.tokens.size());
    if (!rows.empty()) {
      std::fill(piece.loss.begin(), piece.loss.begin() + std::min(head, size), 0);
    }
    if (piece.LossTokens() == 0) {
      whole_is_kept_ = false;
      return;
    }
    kept_ += rows.empty() ? size : std::max<int64_t>(0, size - head);
    rows.push_back(std::move(piece));
  }

  std::vector<EncodedRow> SplitConversation(const ConversationRow& row) {
    const Exchanges exchanges = ExchangesOf(row);
    const int64_t head = HeadTokens(row, exchanges);
    const size_t count = exchanges.begin.size() - 1;
    std::vector<EncodedRow> rows;
    for (size_t begin = 0; begin < count;) {
      size_t end = begin;
      std::optional<EncodedRow> best;
      for (size_t low = begin + 1, high = count; low <= high;) {
        const size_t middle = low + (high - low) / 2;
        if (auto fits = Encoded(Part(row, exchanges, {{begin, middle}}))) {
          best = std::move(fits);
          end = middle;
          low = middle + 1;
        } else {
          high = middle - 1;
        }
      }
      if (!best) {
        TooLong(
            fmt::format("{} tokens, and the turn that begins with message {} alone is too long "
                        "to be a piece",
                        Size(), exchanges.begin[begin]));
      }
      Keep(*std::move(best), head, rows);
      begin = end;
    }
    if (whole_is_kept_) kept_ = Size();
    return rows;
  }

  const RowEncoder& encoder_;
  const EncodedRow whole_;
  const LongRowRule& rule_;
  int64_t kept_ = 0;  // tokens of the row that are in documents
  bool whole_is_kept_ = true;
};

}  // namespace

FittedRow FitLongRow(const RowEncoder& encoder, const Row& row, EncodedRow whole,
                     const LongRowRule& rule) {
  return LongRow(encoder, std::move(whole), rule).Fit(row);
}

}  // namespace sft::engine
