#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "tests/unit/worker/engine/data/model_folder.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"

namespace sft::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

std::string QuestionRow(const std::string& question, const std::string& answer) {
  return R"({"messages": [{"role": "user", "content": ")" + question +
         R"("}, {"role": "assistant", "content": ")" + answer + "\"}]}\n";
}

class PrepareTest : public ::testing::Test {
 protected:
  PrepareOptions Options(std::string_view rows) const {
    PrepareOptions options;
    options.data = model_.Write("rows.jsonl", rows);
    options.cache_dir = model_.path() / "cache" / "data";
    options.sequence_length = 64;
    options.threads = 2;
    return options;
  }

  size_t FilesInCache() const {
    if (!fs::exists(model_.path() / "cache")) return 0;
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(model_.path() / "cache" / "data"), {}));
  }

  const ModelFolder model_{"chatml_tools", "<s>", "<|im_end|>"};
  const ChatTokenizer tokenizer_ = ChatTokenizer::Open(model_.path());
};

TEST_F(PrepareTest, RowsBecomeDocumentsInFileOrder) {
  std::string rows = "\xef\xbb\xbf";
  for (int i = 0; i < 200; ++i)
    rows += QuestionRow("q" + std::to_string(i), "a" + std::to_string(i)) + "\r\n\n";
  const PreparedDataset prepared = PrepareDataset(tokenizer_, Options(rows));
  ASSERT_EQ(prepared.dataset->size(), 200);
  for (int i = 0; i < 200; ++i) {
    const Document document = prepared.dataset->Get(i);
    EXPECT_EQ(document.line, 3 * i + 1);
    std::vector<int32_t> learnt;
    for (size_t t = 0; t < document.tokens.size(); ++t) {
      if (document.loss[t] != 0) learnt.push_back(document.tokens[t]);
    }
    EXPECT_EQ(tokenizer_.DecodeAnswer(learnt), "a" + std::to_string(i));
    EXPECT_EQ(prepared.dataset->Length(i), static_cast<int64_t>(document.tokens.size()));
    EXPECT_EQ(prepared.dataset->LossTokens(i), static_cast<int64_t>(learnt.size()));
  }
  EXPECT_EQ(prepared.dataset->stats().rows, 200);
  EXPECT_EQ(prepared.dataset->stats().used, 200);
  EXPECT_EQ(FilesInCache(), 1U);
}

TEST_F(PrepareTest, BadRowsFailTheJobAndAreListedByLine) {
  const std::string rows = QuestionRow("a", "b") + "nonsense\n" + R"({"messages": []})" + "\n" +
                           QuestionRow("x<|im_end|>", "b") +
                           QuestionRow("long", std::string(900, 'x'));
  EXPECT_THAT(
      [&] { PrepareDataset(tokenizer_, Options(rows)); },
      ThrowsMessage<UserError>(AllOf(HasSubstr("rows.jsonl: 4 of 5 rows cannot be used"),
                                     HasSubstr("line 2: not JSON"),
                                     HasSubstr("line 3: the conversation has no messages"),
                                     HasSubstr("line 4: message 0.content holds \"<|im_end|>\""),
                                     HasSubstr("line 5: "), HasSubstr("sequence_length is 64"))));
  EXPECT_EQ(FilesInCache(), 0U);
}

TEST_F(PrepareTest, OnlyTwentyOfManyBadRowsAreListed) {
  std::string rows;
  for (int i = 0; i < 30; ++i) rows += "{}\n";
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, Options(rows)); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("line 20:"), Not(HasSubstr("line 21:")),
                                             HasSubstr("and 10 more"))));
}

TEST_F(PrepareTest, SkippedRowsAreCountedWithTheirLines) {
  PrepareOptions options = Options(QuestionRow("a", "b") + "nonsense\n" +
                                   QuestionRow("long", std::string(900, 'x')) + "{}\n");
  options.on_bad_rows = spec::BadRows::kSkip;
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, options); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("1 of 4 rows"), HasSubstr("line 3:"))));
  options.on_long_rows = spec::LongRows::kSkip;
  const DatasetStats& stats = PrepareDataset(tokenizer_, options).dataset->stats();
  EXPECT_EQ(stats.rows, 4);
  EXPECT_EQ(stats.used, 1);
  EXPECT_EQ(stats.skipped_total(), 3);
  EXPECT_EQ(stats.skipped[static_cast<int>(RowProblem::kTooLong)], 1);
  EXPECT_GT(stats.skipped_tokens, options.sequence_length);
  EXPECT_GT(stats.skipped_loss_tokens, 0);
  EXPECT_LT(stats.skipped_loss_tokens, stats.skipped_tokens);
  ASSERT_EQ(stats.skipped_rows.size(), 3U);
  EXPECT_EQ(stats.skipped_rows[1].line, 3);
  EXPECT_EQ(stats.skipped_rows[1].problem, RowProblem::kTooLong);
}

TEST_F(PrepareTest, OfLongPairsOnlyWhatTheirJobsMayDoIsAdvised) {
  PrepareOptions options =
      Options(R"({"prompt":"a","chosen":" )" + std::string(900, 'x') + R"(","rejected":" c"})");
  options.learns = data::Learns::kPairs;
  try {
    PrepareDataset(tokenizer_, options);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.advice(), AllOf(HasSubstr("\"truncate_left\""), HasSubstr("\"skip\""),
                                      Not(HasSubstr("truncate_right")), Not(HasSubstr("split"))));
  }
}

TEST_F(PrepareTest, OfTurnsThatAreTooLongToBePiecesItIsAdvisedToCutThem) {
  PrepareOptions options = Options(QuestionRow("long", std::string(900, 'x')));
  options.on_long_rows = spec::LongRows::kSplit;
  try {
    PrepareDataset(tokenizer_, options);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.advice(), AllOf(HasSubstr("data.on_bad_rows = \"skip\""),
                                      HasSubstr("data.on_long_rows = \"truncate_right\""),
                                      HasSubstr("sequence_length"), Not(HasSubstr("split"))));
  }
}

TEST_F(PrepareTest, RowsStandInFilesOfSeveralKinds) {
  const std::string array =
      "[" + QuestionRow("a", "b") + ",\n" + R"({"question": "c", "answer": "d"})" + "]";
  const std::pair<const char*, std::string> files[] = {
      {"rows.json", array},
      {"rows.csv", "question,answer\na,b\n\"c\",d\n"},
      {"rows.jsonl",
       R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})"
       "\n" +
           QuestionRow("c", "d")},
  };
  std::vector<std::vector<int32_t>> tokens;
  for (const auto& [name, text] : files) {
    PrepareOptions options = Options(text);
    options.name = name;
    const PreparedDataset prepared = PrepareDataset(tokenizer_, options);
    ASSERT_EQ(prepared.dataset->size(), 2) << name;
    std::vector<int32_t> both;
    for (int i = 0; i < 2; ++i) {
      const Document document = prepared.dataset->Get(i);
      both.insert(both.end(), document.tokens.begin(), document.tokens.end());
    }
    tokens.push_back(std::move(both));
    // Found again in the cache, where nothing else is left.
    EXPECT_TRUE(PrepareDataset(tokenizer_, options).from_cache);
    EXPECT_EQ(FilesInCache(), tokens.size());
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(tokens[0], tokens[2]);
}

// What stands in a Parquet file, with the nulls that its columns put into tools and calls, is what
// stands in JSON Lines without them.
TEST_F(PrepareTest, ParquetIsReadAsItsRowsInJsonLines) {
  const fs::path folder = fs::path(SFT_SOURCE_DIR) / "tests/unit/common/columnar/files";
  std::vector<int32_t> tokens[2];
  int64_t used[2] = {};
  for (int i = 0; i < 2; ++i) {
    PrepareOptions options = Options("");
    options.data = folder / (i == 0 ? "chat.parquet" : "chat.jsonl");
    options.on_bad_rows = spec::BadRows::kSkip;
    options.sequence_length = 4096;
    const auto dataset = PrepareDataset(tokenizer_, options).dataset;
    used[i] = dataset->stats().used;
    for (int64_t row = 0; row < dataset->size(); ++row) {
      const Document document = dataset->Get(row);
      tokens[i].insert(tokens[i].end(), document.tokens.begin(), document.tokens.end());
    }
    EXPECT_EQ(dataset->stats().rows, 5);
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(used[0], used[1]);
  EXPECT_GE(used[0], 3);
  PrepareOptions options = Options("");
  options.data = folder / "chat.parquet";
  options.sequence_length = 4096;
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, options); },
              ThrowsMessage<UserError>(HasSubstr("\n  row 3: the conversation has no messages")));
  options.data = folder / "brotli.parquet";
  EXPECT_THAT(
      [&] { PrepareDataset(tokenizer_, options); },
      ThrowsMessage<UserError>(AllOf(HasSubstr("brotli.parquet: row group 1: column source"),
                                     HasSubstr("write the file with zstd"))));
}

TEST_F(PrepareTest, FormsAreCountedAndLinesOfOtherFilesNamed) {
  PrepareOptions options = Options("[" + QuestionRow("a", "b") + R"(, {"text": "x"},
    {"prompt": "a", "chosen": "b", "rejected": "c"}, {"text": "y"}])");
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, options); },
              ThrowsMessage<UserError>(HasSubstr("line 3: a preference pair")));
  options.on_bad_rows = spec::BadRows::kSkip;
  const auto dataset = PrepareDataset(tokenizer_, options).dataset;
  EXPECT_EQ(data::FormsText(dataset->stats().forms), "1 messages, 2 text, 1 preference pairs");
  EXPECT_EQ(dataset->Get(2).line, 3);
  options.max_examples = 1;
  EXPECT_EQ(PrepareDataset(tokenizer_, options).dataset->stats().rows, 1);
  PrepareOptions broken = Options("[{\"text\": \"a\"},\n");
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, broken); },
              ThrowsMessage<UserError>(HasSubstr("rows.jsonl: line 2: the file ends inside")));
}

std::set<std::string> Texts(const ChatTokenizer& tokenizer, const Dataset& dataset) {
  std::set<std::string> texts;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    texts.insert(tokenizer.tokenizer().Decode(dataset.Get(i).tokens, /*skip_special=*/true));
  }
  return texts;
}

TEST_F(PrepareTest, WhichRowsAreHeldOutDependsOnNoOtherRow) {
  std::vector<std::string> rows;
  for (int i = 0; i < 200; ++i) {
    // Each question twice, with two answers: both go to one side.
    rows.push_back(QuestionRow(fmt::format("q{};", i / 2), fmt::format("a{};", i)));
  }
  const auto divide = [&](const std::vector<std::string>& order, bool held) {
    std::string text;
    for (const std::string& row : order) text += row;
    PrepareOptions options = Options(text);
    options.hold_out = {.share = 0.2};
    options.held_out_side = held;
    return PrepareDataset(tokenizer_, options).dataset;
  };
  const auto training = divide(rows, false), validation = divide(rows, true);
  EXPECT_EQ(training->stats().used + validation->stats().used, 200);
  EXPECT_EQ(training->stats().held_out, validation->stats().used);
  EXPECT_GT(validation->stats().used, 15);
  EXPECT_LT(validation->stats().used, 80);
  const std::set<std::string> held = Texts(tokenizer_, *validation);
  std::set<std::string> both = Texts(tokenizer_, *training);
  both.insert(held.begin(), held.end());
  EXPECT_EQ(both.size(), 200U);
  for (int i = 0; i < 200; i += 2) {
    const auto is_held = [&](int row) {
      return std::ranges::any_of(held, [&](const std::string& text) {
        return text.find(fmt::format("a{};", row)) != std::string::npos &&
               text.find(fmt::format("q{};", row / 2)) != std::string::npos;
      });
    };
    EXPECT_EQ(is_held(i), is_held(i + 1)) << i;
  }
  // Another order, and rows that came later.
  std::ranges::reverse(rows);
  rows.insert(rows.begin() + 7, QuestionRow("new", "row"));
  const std::set<std::string> again = Texts(tokenizer_, *divide(rows, true));
  EXPECT_TRUE(std::ranges::includes(again, held));
  EXPECT_LE(again.size(), held.size() + 1);
}

TEST_F(PrepareTest, RowsAreHeldOutByNumberAndColumn) {
  std::string rows;
  for (int i = 0; i < 60; ++i) {
    rows +=
        "{\"text\": \"t" + std::to_string(i) + "\", \"source\": " + std::to_string(i % 6) + "}\n";
  }
  PrepareOptions options = Options(rows);
  options.hold_out = {.rows = 7};
  options.held_out_side = true;
  EXPECT_EQ(PrepareDataset(tokenizer_, options).dataset->size(), 7);
  options.group_by = "source";  // groups of ten: as many as make up the number
  EXPECT_EQ(PrepareDataset(tokenizer_, options).dataset->size(), 10);
  options.held_out_side = false;
  const auto training = PrepareDataset(tokenizer_, options).dataset;
  EXPECT_EQ(training->size(), 50);
  options.seed = 43;
  EXPECT_NE(Texts(tokenizer_, *training),
            Texts(tokenizer_, *PrepareDataset(tokenizer_, options).dataset));
  options.group_by = "missing";
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, options); },
              ThrowsMessage<UserError>(HasSubstr("has no column \"missing\" (data.group_by)")));
  options.group_by = "";
  for (const spec::HoldOut all : {spec::HoldOut{.rows = 60}, spec::HoldOut{.share = 1e-9}}) {
    options.hold_out = all;
    EXPECT_THAT([&] { PrepareDataset(tokenizer_, options); },
                ThrowsMessage<UserError>(HasSubstr("data.val_split leaves no row for")));
  }
}

TEST_F(PrepareTest, RepeatsAreLeftOutAndNamed) {
  const std::string rows = QuestionRow("a", "b") + QuestionRow("a", "c") +
                           R"({"question": "a", "answer": "b", "id": 7})" + "\n" +
                           QuestionRow("a", "b") + R"({"prompt": "x", "completion": "y"})" + "\n" +
                           R"({"prompt": "x", "completion": "z"})" + "\n";
  PrepareOptions options = Options(rows);
  options.dedup = spec::Dedup::kExact;
  const auto exact = PrepareDataset(tokenizer_, options).dataset;
  EXPECT_EQ(exact->stats().repeated, 2);
  EXPECT_EQ(exact->stats().repeats, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(exact->size(), 4);
  options.dedup = spec::Dedup::kPrompt;
  const auto prompt = PrepareDataset(tokenizer_, options).dataset;
  EXPECT_EQ(prompt->size(), 2);
  EXPECT_EQ(prompt->stats().repeated, 4);
  EXPECT_EQ(prompt->stats().repeats, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(PrepareDataset(tokenizer_, options).dataset->stats().repeated, 4);  // from the cache
  options.dedup = spec::Dedup::kOff;
  EXPECT_EQ(PrepareDataset(tokenizer_, options).dataset->size(), 6);
}

TEST_F(PrepareTest, RepeatsOfAnEarlierFileAreLeftOutToo) {
  PrepareOptions first = Options("");
  first.data = model_.Write("first.csv", "question,answer\na,b\nc,d\n");
  PrepareOptions options = Options(QuestionRow("a", "b") + QuestionRow("e", "f"));
  options.dedup = spec::Dedup::kExact;
  EXPECT_EQ(PrepareDataset(tokenizer_, options).dataset->size(), 2);
  options.earlier = {first};
  const auto after = PrepareDataset(tokenizer_, options);
  EXPECT_FALSE(after.from_cache);
  EXPECT_EQ(after.dataset->size(), 1);
  EXPECT_EQ(after.dataset->stats().repeats, std::vector<int64_t>{1});
  // Nothing is left of it: an error, unless another of several files has rows.
  first.data = model_.Write("both.csv", "question,answer\na,b\ne,f\n");
  options.earlier = {first};
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, options); },
              ThrowsMessage<UserError>(HasSubstr("none of its rows is left: 2 repeat")));
  options.one_of_several = true;
  for (int i = 0; i < 2; ++i) {
    const PreparedDataset empty = PrepareDataset(tokenizer_, options);
    EXPECT_EQ(empty.from_cache, i == 1);
    EXPECT_EQ(empty.dataset->size(), 0);
    EXPECT_EQ(empty.dataset->stats().repeated, 2);
  }
  options.one_of_several = false;
  // Another file before it is another result.
  first.data = model_.Write("first.csv", "question,answer\nc,d\n");
  options.earlier = {first};
  EXPECT_EQ(PrepareDataset(tokenizer_, options).dataset->size(), 2);
}

TEST_F(PrepareTest, LongRowsAreCutAndWhatIsLostIsCounted) {
  std::string words;
  for (int i = 0; i < 300; ++i) words += "word" + std::to_string(i) + " ";
  const std::string rows = QuestionRow("a", "b") + "{\"text\": \"" + words + "\"}\n";
  PrepareOptions options = Options(rows);
  options.on_long_rows = spec::LongRows::kSplit;
  options.sequence_length = 64;
  options.split_overlap = 1000;  // at most half of a sequence is shared
  const auto split = PrepareDataset(tokenizer_, options).dataset;
  EXPECT_EQ(split->stats().used, 2);
  EXPECT_EQ(split->stats().cut, 1);
  EXPECT_GT(split->stats().documents, 5);
  EXPECT_EQ(split->size(), split->stats().documents);
  EXPECT_EQ(split->Get(split->size() - 1).line, 2);
  EXPECT_EQ(split->stats().cut_loss_tokens, 0);
  EXPECT_EQ(split->stats().longest, 64);
  options.on_long_rows = spec::LongRows::kTruncateRight;
  const auto cut = PrepareDataset(tokenizer_, options).dataset;
  EXPECT_EQ(cut->size(), 2);
  EXPECT_EQ(cut->stats().cut, 1);
  EXPECT_GT(cut->stats().cut_tokens, 0);
  EXPECT_EQ(cut->stats().cut_loss_tokens + cut->stats().loss_tokens, split->stats().loss_tokens);
  const auto again = PrepareDataset(tokenizer_, options);
  EXPECT_TRUE(again.from_cache);
  EXPECT_EQ(again.dataset->stats().cut_tokens, cut->stats().cut_tokens);
}

TEST_F(PrepareTest, ARowWithoutLossBehindTheCutIsABadRow) {
  PrepareOptions options = Options(QuestionRow("a", "b") + QuestionRow(std::string(900, 'x'), "b"));
  options.on_long_rows = spec::LongRows::kTruncateRight;
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, options); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("line 2: "), HasSubstr("none with loss"))));
  options.on_bad_rows = spec::BadRows::kSkip;
  const auto dataset = PrepareDataset(tokenizer_, options).dataset;
  EXPECT_EQ(dataset->stats().skipped[static_cast<int>(RowProblem::kNoAnswer)], 1);
  EXPECT_EQ(dataset->stats().cut, 0);
}

TEST_F(PrepareTest, AFileWithoutUsableRowsIsRefused) {
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, Options("")); },
              ThrowsMessage<UserError>(HasSubstr("the file has no rows")));
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, Options("\n \n")); },
              ThrowsMessage<UserError>(HasSubstr("the file has no rows")));
  PrepareOptions options = Options("{}\n");
  options.on_bad_rows = spec::BadRows::kSkip;
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, options); },
              ThrowsMessage<UserError>(HasSubstr("none of its 1 rows can be used; line 1")));
  options.data = model_.path() / "missing.jsonl";
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, options); },
              ThrowsMessage<UserError>(HasSubstr("missing.jsonl")));
  options.data = model_.path();
  EXPECT_THROW(PrepareDataset(tokenizer_, options), UserError);
}

TEST_F(PrepareTest, MaxExamplesTakesTheFirstRows) {
  PrepareOptions options =
      Options(QuestionRow("a", "b") + "\n" + QuestionRow("c", "d") + "nonsense\n");
  options.max_examples = 2;
  const PreparedDataset prepared = PrepareDataset(tokenizer_, options);
  ASSERT_EQ(prepared.dataset->size(), 2);
  EXPECT_EQ(prepared.dataset->Get(1).line, 3);
}

TEST_F(PrepareTest, ASecondPreparationFindsTheFirstOnes) {
  const PrepareOptions options = Options(QuestionRow("a", "b"));
  EXPECT_FALSE(PrepareDataset(tokenizer_, options).from_cache);
  const PreparedDataset again = PrepareDataset(tokenizer_, options);
  EXPECT_TRUE(again.from_cache);
  EXPECT_EQ(again.dataset->stats().used, 1);
}

TEST_F(PrepareTest, WhateverChangesTheTokensChangesTheFile) {
  PrepareOptions options = Options(QuestionRow("a", "b"));
  PrepareDataset(tokenizer_, options);
  options.sequence_length = 65;
  EXPECT_FALSE(PrepareDataset(tokenizer_, options).from_cache);
  options.loss_on = spec::LossOn::kAll;
  EXPECT_FALSE(PrepareDataset(tokenizer_, options).from_cache);
  options.names.stanford = true;
  EXPECT_FALSE(PrepareDataset(tokenizer_, options).from_cache);
  const ModelFolder other("thinking", "<s>", "<|im_end|>");
  EXPECT_FALSE(PrepareDataset(ChatTokenizer::Open(other.path()), options).from_cache);
  options.data = model_.Write("rows.jsonl", QuestionRow("a", "c"));
  EXPECT_FALSE(PrepareDataset(tokenizer_, options).from_cache);
  EXPECT_EQ(FilesInCache(), 6U);
}

TEST_F(PrepareTest, ADamagedCacheFileIsMadeAnew) {
  const PrepareOptions options = Options(QuestionRow("a", "b") + QuestionRow("c", "d"));
  const fs::path file = PrepareDataset(tokenizer_, options).file;
  const std::string whole = ReadWhole(file);
  std::vector<std::string> broken = {"", whole.substr(0, 40), whole.substr(0, whole.size() - 1),
                                     whole + "x"};
  for (const size_t at : {size_t{0}, size_t{9}, size_t{90}, whole.size() / 2, whole.size() - 9}) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    broken.push_back(flipped);
  }
  for (const std::string& bytes : broken) {
    model_.Write(fs::relative(file, model_.path()).string(), bytes);
    EXPECT_THROW(Dataset::Open(file, file.stem().string()), InternalError);
    EXPECT_FALSE(PrepareDataset(tokenizer_, options).from_cache);
    EXPECT_EQ(ReadWhole(file), whole);
  }
}

TEST_F(PrepareTest, AUseOfACachedFileIsSeenByItsTime) {
  const PrepareOptions options = Options(QuestionRow("a", "b"));
  const fs::path file = PrepareDataset(tokenizer_, options).file;
  const fs::file_time_type written = fs::last_write_time(file);
  fs::last_write_time(file, written - std::chrono::hours(24));
  EXPECT_TRUE(PrepareDataset(tokenizer_, options).from_cache);
  EXPECT_GE(fs::last_write_time(file), written);
}

TEST_F(PrepareTest, AFullDiskLeavesNothingBehind) {
  const PrepareOptions options = Options(QuestionRow("a", "b") + QuestionRow("c", "d"));
  // A limit on the size of files fails the write as a full disk does.
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {.rlim_cur = 200, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_THROW(PrepareDataset(tokenizer_, options), InfrastructureError);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(FilesInCache(), 0U);
  EXPECT_FALSE(PrepareDataset(tokenizer_, options).from_cache);
}

TEST_F(PrepareTest, ACacheFolderThatCannotBeMadeIsTheNodesFault) {
  PrepareOptions options = Options(QuestionRow("a", "b"));
  options.cache_dir = options.data / "cache";
  EXPECT_THROW(PrepareDataset(tokenizer_, options), InfrastructureError);
}

TEST_F(PrepareTest, ProgressEndsAtTheFilesSize) {
  PrepareOptions options = Options(QuestionRow("a", "b") + QuestionRow("c", "d"));
  int64_t done = -1;
  int64_t total = -1;
  options.progress = [&](int64_t now, int64_t all) {
    EXPECT_LE(done, now);
    done = now;
    total = all;
  };
  PrepareDataset(tokenizer_, options);
  EXPECT_EQ(total, static_cast<int64_t>(fs::file_size(options.data)));
  EXPECT_EQ(done, total);
}

TEST_F(PrepareTest, OneThreadAndManyMakeTheSameFile) {
  std::string rows;
  for (int i = 0; i < 500; ++i)
    rows += QuestionRow("q" + std::to_string(i), std::string(1 + i % 9, 'a'));
  PrepareOptions options = Options(rows);
  options.threads = 1;
  const fs::path file = PrepareDataset(tokenizer_, options).file;
  const std::string one = ReadWhole(file);
  fs::remove(file);
  options.threads = 5;
  EXPECT_EQ(ReadWhole(PrepareDataset(tokenizer_, options).file), one);
}

}  // namespace
}  // namespace sft::engine
