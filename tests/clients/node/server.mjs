// The server under test, and what is asked of it.

export const URL = process.env.BATON_CLIENTS_URL;
export const MODEL = "tiny";
export const QUESTION = "Nina has 3 shells. She finds 4 more. How many shells does she have now?";

export const KEEP_NOTHING = { openai: { store: false } };
