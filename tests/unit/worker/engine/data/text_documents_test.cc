#include "worker/engine/data/text_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/engine/data/model_folder.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"

namespace sft::engine {
namespace {

TEST(PartsOfTextTest, LinesOfBlanksStandBetweenDocuments) {
  const auto parts = [](std::string_view text) {
    std::string found;
    for (const TextPart& part : PartsOfText(text)) {
      found += std::to_string(part.lines_before) + ":" + std::string(part.text) + "|";
    }
    return found;
  };
  EXPECT_EQ(parts(""), "");
  EXPECT_EQ(parts("\n \t\r\n"), "");
  EXPECT_EQ(parts("a"), "0:a|");
  EXPECT_EQ(parts("  a\nb\n"), "0:  a\nb|");
  EXPECT_EQ(parts("a\r\n\r\nb\r\nc\n\n\nd\n\n"), "0:a|2:b\r\nc|6:d|");
}

class TextDocumentsTest : public ::testing::Test {
 protected:
  PrepareOptions Options(const std::string& name, std::string_view rows) const {
    PrepareOptions options;
    options.data = model_.Write(name, rows);
    options.cache_dir = model_.path() / "cache";
    options.sequence_length = 64;
    options.threads = 1;
    return options;
  }
  const ModelFolder model_{"chatml_tools", "<s>", "<|im_end|>"};
  const ChatTokenizer tokenizer_ = ChatTokenizer::Open(model_.path());
};

TEST_F(TextDocumentsTest, RowsAreDividedWhereTheJobSaysSo) {
  PrepareOptions options = Options("book.txt", "\n\none\ntwo\r\n \t\nthree\n\n\n<|im_end|>\n");
  options.on_bad_rows = spec::BadRows::kSkip;
  EXPECT_THAT([&] { PrepareDataset(tokenizer_, options); },
              ::testing::ThrowsMessage<UserError>(::testing::HasSubstr("none of its 1 rows")));
  options.text_documents = spec::TextDocuments::kBlankLines;
  const PreparedDataset prepared = PrepareDataset(tokenizer_, options);
  EXPECT_FALSE(prepared.from_cache);
  const DatasetStats& stats = prepared.dataset->stats();
  EXPECT_EQ(stats.rows, 3);
  ASSERT_EQ(stats.used, 2);
  EXPECT_EQ(prepared.dataset->Get(0).line, 3);
  EXPECT_EQ(tokenizer_.DecodeAnswer(prepared.dataset->Get(0).tokens), "one\ntwo");
  // Each document ends with the end token, which is learnt.
  EXPECT_EQ(prepared.dataset->Get(0).tokens.back(), *tokenizer_.eos_id());
  EXPECT_EQ(prepared.dataset->Get(0).loss.back(), 1);
  EXPECT_EQ(prepared.dataset->Get(1).line, 6);
  EXPECT_EQ(stats.skipped_rows.at(0).line, 9);
  // The first two documents, of rows in JSON, whose other columns stay.
  options = Options("rows.jsonl", R"({"ask": "a\n\nb", "id": "x"})"
                                  "\n"
                                  R"({"ask": "c\n\nd", "id": "y"})"
                                  "\n");
  options.names = data::NamesOf({"text=ask"}, {});
  options.text_documents = spec::TextDocuments::kBlankLines;
  options.max_examples = 3;
  const auto rows = PrepareDataset(tokenizer_, options).dataset;
  ASSERT_EQ(rows->size(), 3);
  EXPECT_EQ(tokenizer_.DecodeAnswer(rows->Get(2).tokens), "c");
  EXPECT_EQ(rows->Get(1).line, 1);
  EXPECT_EQ(rows->Get(2).line, 2);
}

}  // namespace
}  // namespace sft::engine
