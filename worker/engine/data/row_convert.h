#pragma once

#include <string>

#include "worker/engine/data/row.h"

namespace sft::engine {

// A row in one of the forms whose messages are written otherwise than the template reads them, as
// {"messages": [...]} with what stands beside them. Throws RowError.
nlohmann::ordered_json ShareGptMessages(const nlohmann::ordered_json& row,
                                        const data::RowNames& names);
nlohmann::ordered_json AlpacaMessages(const nlohmann::ordered_json& row);
// The prompt that Stanford's Alpaca makes of instruction and input. Throws RowError for columns
// that have no place in it.
std::string StanfordPrompt(const nlohmann::ordered_json& row);
CompletionRow StanfordRow(const nlohmann::ordered_json& row);
nlohmann::ordered_json QuestionMessages(const nlohmann::ordered_json& row);

// The turns of Alpaca's "history": empty where there is none. Throws RowError.
nlohmann::ordered_json HistoryMessages(const nlohmann::ordered_json& row);

}  // namespace sft::engine
